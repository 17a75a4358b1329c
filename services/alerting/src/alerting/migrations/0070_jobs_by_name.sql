-- Actions name jobs by user and name.
CREATE INDEX job_watch_name ON job_watch ("user", name);
