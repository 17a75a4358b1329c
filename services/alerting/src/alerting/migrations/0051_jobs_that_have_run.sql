-- Whether a task of the job has run: its first run is an event.
ALTER TABLE job_watch ADD COLUMN has_run boolean NOT NULL DEFAULT false;
UPDATE job_watch SET has_run = true WHERE state <> 'WAITING';
