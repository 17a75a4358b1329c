-- What the leader gave its core, in the simulator's form. A row is a cycle: its time in seconds
-- since 1970, and its events as lines of JSON without that time. number: counted on by one, without
-- a gap. memory_at: of the snapshot with which the memory began that decided then. bytes_to: of the
-- lines of all rows up to this one.
CREATE TABLE recorded_cycle (
    number    bigint           PRIMARY KEY,
    at        double precision NOT NULL,
    memory_at double precision NOT NULL,
    epoch     bigint           NOT NULL,
    bytes_to  bigint           NOT NULL,
    lines     text             NOT NULL
);

-- All that the core knew at a time, in parts: what it was given up to and with the cycle `number`.
-- Where at is memory_at, memory began so: at a take-over, or after a failure. Whole once the last
-- part is there.
CREATE TABLE recorded_snapshot (
    at        double precision NOT NULL,
    part      integer          NOT NULL,
    number    bigint           NOT NULL,
    memory_at double precision NOT NULL,
    epoch     bigint           NOT NULL,
    is_last   boolean          NOT NULL,
    bytes     bigint           NOT NULL,
    lines     text             NOT NULL,
    PRIMARY KEY (at, part)
);
