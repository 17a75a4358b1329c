-- The exchange's tables, the same in the schema of every service (shared/src/muster/subjects.py).

-- One row for each subject that this service is a side of. The columns up to answer_at are
-- muster.exchange.Exchange; topic, key and word (JSON without its
-- revision and seen) are the last word that was said, traceparent the last span about the subject.
CREATE TABLE subject (
    kind         text        NOT NULL,
    subject      text        NOT NULL,
    revision     bigint      NOT NULL DEFAULT 0,
    seen         bigint      NOT NULL DEFAULT 0,
    acknowledged bigint      NOT NULL DEFAULT 0,
    dead         bigint      NOT NULL DEFAULT 0,
    refused      bigint      NOT NULL DEFAULT 0,
    repeats      integer     NOT NULL DEFAULT 0,
    repeat_at    timestamptz,
    answer_at    timestamptz,
    is_open      boolean     NOT NULL DEFAULT true,
    topic        text,
    key          text,
    word         text,
    traceparent  text,
    changed_at   timestamptz NOT NULL DEFAULT now(),
    -- The times at which a last word is said again for those who only listen; NULL: none is due.
    encore_at    timestamptz,
    encores      integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, subject)
) WITH (fillfactor = 70);

CREATE INDEX subject_repeat ON subject (repeat_at) WHERE repeat_at IS NOT NULL;
CREATE INDEX subject_answer ON subject (answer_at) WHERE answer_at IS NOT NULL;
CREATE INDEX subject_encore ON subject (encore_at) WHERE encore_at IS NOT NULL;
CREATE INDEX subject_closed ON subject (changed_at) WHERE NOT is_open;

-- Words that are said for the first time, written beside the state that they tell; deleted when
-- the bus has them. A row with parked_for is not tried until a later word replaces it.
CREATE TABLE outbox (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic       text        NOT NULL,
    key         text        NOT NULL,
    kind        text,
    subject     text,
    event_id    text        NOT NULL,
    value       text,
    traceparent text,
    written_at  timestamptz NOT NULL DEFAULT now(),
    parked_for  text
);

CREATE INDEX outbox_parked ON outbox (kind, subject) WHERE parked_for IS NOT NULL;
