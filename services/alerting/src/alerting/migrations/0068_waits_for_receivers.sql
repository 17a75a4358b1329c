-- When a failure of this receiver, or the pause after it, last kept its deliveries waiting.
ALTER TABLE receiver ADD COLUMN free_at timestamptz;
