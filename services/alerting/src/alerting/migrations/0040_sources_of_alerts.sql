-- Who found the condition of an alert, and where it says what to do. received_at: when the newest
-- message about an alert of another program came.
ALTER TABLE alert ADD COLUMN source text NOT NULL DEFAULT 'alerting';
ALTER TABLE alert ADD COLUMN runbook text;
ALTER TABLE alert ADD COLUMN received_at timestamptz;
CREATE INDEX alert_listed ON alert ((ends_at IS NOT NULL), starts_at DESC);
