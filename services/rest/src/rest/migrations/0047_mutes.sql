-- Mutes of alerts and jobs. owner NULL: for everybody.
CREATE TABLE mute (
    id         text        PRIMARY KEY,
    owner      text,
    content    jsonb       NOT NULL,
    until_at   timestamptz NOT NULL,
    revision   bigint      NOT NULL DEFAULT 1,
    removed_at timestamptz
);
