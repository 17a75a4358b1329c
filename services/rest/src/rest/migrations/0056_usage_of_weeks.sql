-- The weeks whose usage report is made, or being made: by the replica that claimed it last.
CREATE TABLE usage_week (
    week       date        PRIMARY KEY,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    missing    text[]      NOT NULL DEFAULT '{}',
    done_at    timestamptz
);

-- GPU seconds of a job: until the end of the week in all, in the week, and what agents know of those.
CREATE TABLE job_usage (
    job              text             NOT NULL REFERENCES job ON DELETE CASCADE,
    week             date             NOT NULL,
    held_until_s     double precision NOT NULL,
    refunded_until_s double precision NOT NULL,
    held_s           double precision NOT NULL,
    refunded_s       double precision NOT NULL,
    known_s          double precision NOT NULL DEFAULT 0,
    busy_s           double precision NOT NULL DEFAULT 0,
    idle_s           double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (job, week)
);

CREATE INDEX job_usage_week ON job_usage (week);
CREATE INDEX job_completed ON job (completed_at) WHERE total_gpus > 0;
