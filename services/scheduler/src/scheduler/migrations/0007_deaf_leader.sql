-- Since when the leader does not hear the bus, by this database's clock; NULL: it hears it.
ALTER TABLE leader ADD COLUMN deaf_since timestamptz;
