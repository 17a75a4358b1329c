-- One row for each gang of which the Scheduler's books are, or were, wrong; its alert fires while
-- since is there.
CREATE TABLE drift_watch (
    gang      text        PRIMARY KEY,
    newest_at timestamptz NOT NULL,
    heard_at  timestamptz NOT NULL,
    since     timestamptz,
    due_at    timestamptz
);

CREATE INDEX drift_watch_due ON drift_watch (due_at) WHERE due_at IS NOT NULL;
