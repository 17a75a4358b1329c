-- The events of the last day, on which rules are tried before they are set.
CREATE TABLE recent_event (
    key     text        PRIMARY KEY,
    name    text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    content jsonb       NOT NULL
);

CREATE INDEX recent_event_name ON recent_event (name, at);
CREATE INDEX recent_event_at ON recent_event (at);

-- The events that count for an alert of a rule; each counts for window_s seconds.
CREATE TABLE rule_match (
    fingerprint text        NOT NULL,
    event_key   text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT now(),
    window_s    float8      NOT NULL,
    PRIMARY KEY (fingerprint, event_key)
);

CREATE INDEX rule_match_at ON rule_match (at);
