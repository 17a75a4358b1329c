-- Virtual clusters and policy as administrators have set them, version by version; the newest is told
-- to the Scheduler on settings-changed. content: JSON, in the order in which it was said; NULL: what
-- was set is removed. rolled_back_to: the version whose content this is again.
CREATE TABLE scheduling_config (
    version        bigint      PRIMARY KEY,
    revision       bigint      NOT NULL,
    content        text,
    made_by        text        NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT now(),
    comment        text        NOT NULL DEFAULT '',
    rolled_back_to bigint
);
