-- Since when the leader is cut off from the bus, by this database's clock; NULL: it is not.
ALTER TABLE leader ADD COLUMN deaf_since timestamptz;
