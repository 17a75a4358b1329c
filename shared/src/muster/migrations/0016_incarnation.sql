-- The state of this database (shared/src/muster/incarnation.py): one row.
CREATE TABLE incarnation (
    is_only     boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    database    text        NOT NULL,
    beat        bigint      NOT NULL,
    beat_at     timestamptz NOT NULL,
    restored    bigint      NOT NULL,
    restored_at timestamptz,
    as_of       timestamptz,
    floor       bigint      NOT NULL
);

-- The restore of each peer that this service has answered.
CREATE TABLE peer (
    service  text   PRIMARY KEY,
    restored bigint NOT NULL
);
