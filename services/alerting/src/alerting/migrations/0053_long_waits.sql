-- While a job waits: since when, and its expected start; since when it waits longer than expected.
ALTER TABLE job_watch ADD COLUMN waits_since timestamptz;
ALTER TABLE job_watch ADD COLUMN expected_start timestamptz;
ALTER TABLE job_watch ADD COLUMN late_since timestamptz;
