-- The alerts of a node's health are found by the node, and so are those that a user asks for.
CREATE INDEX alert_node ON alert (node);
