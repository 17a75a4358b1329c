-- What an action's alert says: the reason that a node's order has.

ALTER TABLE alert_action ADD COLUMN summary text NOT NULL DEFAULT '';
