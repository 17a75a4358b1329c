-- What the Launcher knows of each job (launcher.domain.model.Job). spec never changes; wake_at is
-- when a timer of the job is due next, by this database's clock.
CREATE TABLE job (
    id                   text        PRIMARY KEY,
    name                 text        NOT NULL,
    user_name            text        NOT NULL,
    submitted_at         timestamptz NOT NULL,
    spec                 jsonb       NOT NULL,
    phase                text        NOT NULL,
    attempt              integer     NOT NULL,
    newest_attempt       integer     NOT NULL,
    retries              jsonb       NOT NULL,
    accountable          integer     NOT NULL,
    streak               integer     NOT NULL,
    stop_requested_by    text,
    outcome              jsonb,
    reason               jsonb,
    dead_letter          text,
    retry_at             timestamptz,
    deadline_at          timestamptz,
    quiet_at             timestamptz,
    status_unsaid        boolean     NOT NULL,
    gang_unsaid          boolean     NOT NULL,
    created_at           timestamptz,
    launched_at          timestamptz,
    completed_at         timestamptz,
    attempt_created_at   timestamptz,
    attempt_launched_at  timestamptz,
    attempt_completed_at timestamptz,
    wake_at              timestamptz
) WITH (fillfactor = 70);

CREATE INDEX job_wake ON job (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX job_open ON job (phase) WHERE phase NOT IN ('succeeded', 'failed', 'stopped');
CREATE INDEX job_closed ON job (completed_at) WHERE phase IN ('succeeded', 'failed', 'stopped');

-- The tasks of the present attempt (launcher.domain.model.Task); the next attempt overwrites them.
CREATE TABLE task (
    job          text        NOT NULL REFERENCES job ON DELETE CASCADE,
    role         text        NOT NULL,
    index        integer     NOT NULL,
    phase        text        NOT NULL,
    attempt      integer     NOT NULL,
    accountable  integer     NOT NULL,
    streak       integer     NOT NULL,
    placement    jsonb,
    stop         text,
    created_at   timestamptz,
    launched_at  timestamptz,
    completed_at timestamptz,
    retry_at     timestamptz,
    exit_code    integer,
    verdict      jsonb,
    release      jsonb,
    PRIMARY KEY (job, role, index)
) WITH (fillfactor = 70);
