-- Actions on alerts: one for each rule and time that an alert fires. state: held, requested, dry-run,
-- done, refused, undo-requested or undone.
CREATE TABLE action (
    action      text        PRIMARY KEY,
    rule        text        NOT NULL,
    "do"        text        NOT NULL,
    target      text        NOT NULL,
    fingerprint text        NOT NULL,
    starts_at   timestamptz NOT NULL,
    name        text        NOT NULL,
    summary     text        NOT NULL,
    state       text        NOT NULL,
    reason      text        NOT NULL,
    at          timestamptz NOT NULL,
    asked_at    timestamptz NOT NULL,
    is_dry_run  boolean     NOT NULL
);

CREATE INDEX action_at ON action (at);
