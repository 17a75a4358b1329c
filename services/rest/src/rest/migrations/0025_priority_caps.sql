-- The highest priority that a user may ask for, by virtual cluster; '*': in all others.
ALTER TABLE account ADD COLUMN priority_caps jsonb NOT NULL DEFAULT '{}';
