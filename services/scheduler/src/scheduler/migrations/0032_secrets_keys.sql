-- The public key of the node's agent when the pod was placed, where its gang needs keys.
ALTER TABLE placement ADD COLUMN secrets_key text;
