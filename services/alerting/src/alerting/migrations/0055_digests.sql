-- A delivery that waits for a digest, until digest_at; then it is part of the digest's own delivery.
ALTER TABLE delivery ADD COLUMN digest_at timestamptz;
ALTER TABLE delivery ADD COLUMN digest text;
ALTER TABLE delivery DROP CONSTRAINT delivery_state_check;
ALTER TABLE delivery ADD CONSTRAINT delivery_state_check
    CHECK (state IN ('waiting', 'sent', 'given-up', 'digested'));
CREATE INDEX delivery_digest ON delivery (digest_at)
    WHERE state = 'waiting' AND digest_at IS NOT NULL;
