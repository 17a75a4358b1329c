-- Jobs. spec is what was asked for, and never changes; state is the rest of
-- launcher.domain.model.Job, of which phase and completed_at are copies for people and for indexes.
-- wake_at is when a timer of the job is due next, by this database's clock.
CREATE TABLE job (
    id           text        PRIMARY KEY,
    spec         jsonb       NOT NULL,
    state        jsonb       NOT NULL,
    phase        text        NOT NULL,
    wake_at      timestamptz,
    completed_at timestamptz
) WITH (fillfactor = 70);

CREATE INDEX job_wake ON job (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX job_open ON job (phase) WHERE phase NOT IN ('succeeded', 'failed', 'stopped');
CREATE INDEX job_closed ON job (completed_at) WHERE phase IN ('succeeded', 'failed', 'stopped');

-- The tasks of the present attempt (launcher.domain.model.Task); the next attempt overwrites them.
-- phase and node are copies of what is in state.
CREATE TABLE task (
    job   text    NOT NULL REFERENCES job ON DELETE CASCADE,
    role  text    NOT NULL,
    index integer NOT NULL,
    phase text    NOT NULL,
    node  text,
    state jsonb   NOT NULL,
    PRIMARY KEY (job, role, index)
) WITH (fillfactor = 70);
