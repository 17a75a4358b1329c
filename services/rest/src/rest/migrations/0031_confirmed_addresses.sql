-- A mail address is confirmed where an admin has set it, or where its user has given back the code
-- that was mailed to it.
ALTER TABLE account ADD COLUMN email_confirmed boolean NOT NULL DEFAULT false;

-- Each row stands for one code that is mailed to an address. The code itself is derived from the
-- webhook key, never stored. Alerting learns of a row on settings-changed until the row has ended:
-- its code is used, replaced or expired.
CREATE TABLE confirmation (
    id         text        PRIMARY KEY,
    username   text        NOT NULL REFERENCES account ON DELETE CASCADE,
    email      text        NOT NULL,
    revision   bigint      NOT NULL DEFAULT 1,
    made_at    timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    ended_at   timestamptz
);

CREATE INDEX confirmation_username ON confirmation (username);
CREATE INDEX confirmation_email ON confirmation (lower(email));
