-- Whose job an alert is about, and which node: what muster.contracts.alerts reads in its labels.
ALTER TABLE alert ADD COLUMN "user" text;
ALTER TABLE alert ADD COLUMN node text;
UPDATE alert SET "user" = coalesce(labels->>'user', labels->>'username'),
    node = coalesce(labels->>'node', labels->>'node_name');
