-- The state of this database (shared/src/muster/incarnation.py): one row. Times are milliseconds since 1970.
CREATE TABLE incarnation (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    database text    NOT NULL,
    beat     bigint  NOT NULL,
    restored bigint  NOT NULL,
    as_of    bigint  NOT NULL,
    lost     bigint  NOT NULL
);

-- The restore of each peer that this service has answered.
CREATE TABLE peer (
    service  text   PRIMARY KEY,
    restored bigint NOT NULL
);
