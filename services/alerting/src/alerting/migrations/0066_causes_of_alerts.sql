-- What an alert came of, and the incident that it shares with others of this cause: an incident is over
-- with the last of them.
ALTER TABLE alert ADD COLUMN cause text, ADD COLUMN incident text;
CREATE INDEX alert_incident ON alert (incident) WHERE ends_at IS NULL;

-- The alerts of a node's health are found by the node, and so are those that a user asks for.
CREATE INDEX alert_node ON alert (node);
