-- The end of a job closes its subject at once. Those that have ended before are closed here.
UPDATE subject SET is_open = false, changed_at = now()
FROM job WHERE kind = 'job' AND subject = job.id AND is_open AND completed_at IS NOT NULL;

DROP INDEX job_closing;
ALTER TABLE job DROP COLUMN is_closed;
