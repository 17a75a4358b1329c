-- What Alerting keeps: what it has heard, what fires, and what is to be sent to whom.

-- One row for each job that was heard of: its last word, and since when nothing has changed.
-- due_at: when it counts as stuck if nothing changes before.
CREATE TABLE job_watch (
    job             text        PRIMARY KEY,
    revision        bigint      NOT NULL,
    content         text        NOT NULL,
    name            text        NOT NULL,
    "user"          text        NOT NULL,
    virtual_cluster text        NOT NULL,
    state           text        NOT NULL,
    attempt         integer     NOT NULL,
    has_reason      boolean     NOT NULL,
    dead_letter     text,
    dead_at         timestamptz,
    quiet_since     timestamptz NOT NULL,
    stuck_since     timestamptz,
    due_at          timestamptz
) WITH (fillfactor = 70);

CREATE INDEX job_watch_due ON job_watch (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX job_watch_quiet ON job_watch (quiet_since);

-- One row for each node that was lost or returned; its alert fires while lost_since is there.
CREATE TABLE node_watch (
    node           text        PRIMARY KEY,
    lost_lease     bigint,
    lost_since     timestamptz,
    heard_at       timestamptz,
    returned_lease bigint,
    returned_at    timestamptz,
    due_at         timestamptz
);

CREATE INDEX node_watch_due ON node_watch (due_at) WHERE due_at IS NOT NULL;

-- The dead letters of one reader of one topic; their alert fires while since is there.
CREATE TABLE dead_pile (
    reader    text        NOT NULL,
    topic     text        NOT NULL,
    newest_at timestamptz NOT NULL,
    heard_at  timestamptz NOT NULL,
    since     timestamptz,
    due_at    timestamptz,
    PRIMARY KEY (reader, topic)
);

CREATE INDEX dead_pile_due ON dead_pile (due_at) WHERE due_at IS NOT NULL;

-- Alerts, firing while ends_at is NULL.
CREATE TABLE alert (
    fingerprint text        NOT NULL,
    starts_at   timestamptz NOT NULL,
    name        text        NOT NULL,
    severity    text        NOT NULL,
    summary     text        NOT NULL,
    labels      jsonb       NOT NULL,
    ends_at     timestamptz,
    PRIMARY KEY (fingerprint, starts_at)
);

CREATE INDEX alert_firing ON alert (name) WHERE ends_at IS NULL;

-- Subscriptions as last published, so that they are known before the bus is read anew.
CREATE TABLE subscription (
    setting  text   PRIMARY KEY,
    revision bigint NOT NULL,
    value    jsonb  NOT NULL
);

-- What is told, in the words that receivers get: once for all its deliveries.
CREATE TABLE event (
    key         text        PRIMARY KEY,
    name        text        NOT NULL,
    at          timestamptz NOT NULL,
    body        text        NOT NULL,
    subject     text        NOT NULL,
    text        text        NOT NULL,
    html        text        NOT NULL,
    thread      text        NOT NULL,
    traceparent text,
    written_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX event_written ON event (written_at);

-- One event for one subscription. state: waiting, sent or given-up; the last two are final.
-- lease names the worker that has it until lease_until.
CREATE TABLE delivery (
    id           text        PRIMARY KEY,
    subscription text        NOT NULL,
    channel      text        NOT NULL,
    event_key    text        NOT NULL REFERENCES event ON DELETE CASCADE,
    state        text        NOT NULL DEFAULT 'waiting'
                             CHECK (state IN ('waiting', 'sent', 'given-up')),
    attempts     integer     NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL DEFAULT now(),
    lease        text,
    lease_until  timestamptz,
    why          text,
    reason       text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    UNIQUE (subscription, event_key)
) WITH (fillfactor = 70);

CREATE INDEX delivery_waiting ON delivery (subscription, next_at) WHERE state = 'waiting';
CREATE INDEX delivery_age ON delivery (created_at) WHERE state = 'waiting';
CREATE INDEX delivery_event ON delivery (event_key);

-- How a subscription's receiver has been doing, since the version of its subscription.
CREATE TABLE receiver (
    subscription text        PRIMARY KEY,
    channel      text        NOT NULL,
    version      text        NOT NULL,
    failures     integer     NOT NULL DEFAULT 0,
    paused_until timestamptz,
    disabled     text
);
