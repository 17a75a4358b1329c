-- The newest order that made the delivery wait once more: each order counts once.
ALTER TABLE delivery ADD COLUMN replay text;
