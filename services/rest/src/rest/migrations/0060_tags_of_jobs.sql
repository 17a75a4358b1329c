ALTER TABLE job ADD COLUMN tags text[] NOT NULL DEFAULT '{}';
CREATE INDEX job_tags ON job USING gin (tags) WHERE cardinality(tags) > 0;
