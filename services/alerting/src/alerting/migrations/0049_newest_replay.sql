-- The newest replay that was carried out: an order counts once.
ALTER TABLE receiver ADD COLUMN replayed text;
