-- Rules for alerts as administrators have set them, version by version, as scheduling_config.
CREATE TABLE alert_rules (
    version        bigint      PRIMARY KEY,
    revision       bigint      NOT NULL,
    content        text,
    made_by        text        NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT now(),
    comment        text        NOT NULL DEFAULT '',
    rolled_back_to bigint
);

-- Actions on alerts that Alerting has requested: each is carried out once.
CREATE TABLE alert_action (
    action      text        PRIMARY KEY,
    "do"        text        NOT NULL,
    target      text        NOT NULL,
    outcome     text        NOT NULL,
    reason      text        NOT NULL,
    undone_by   text,
    answered_at timestamptz NOT NULL DEFAULT now()
);
