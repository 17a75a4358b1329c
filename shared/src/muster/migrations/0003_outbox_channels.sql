-- Kafka's hash of the key, by which rows of partitions that are away are passed over. Rows from
-- before have none, and are tried.
ALTER TABLE outbox ADD COLUMN key_hash integer;
