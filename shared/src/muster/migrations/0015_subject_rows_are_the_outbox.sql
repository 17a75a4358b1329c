-- A subject's row is its outbox: the relay republishes it at repeat_at. What was still in the outbox
-- on a subject is in that subject's row as well.
ALTER TABLE subject RENAME COLUMN dead TO skipped;
ALTER TABLE subject RENAME COLUMN refused TO rejected;
ALTER TABLE subject RENAME COLUMN word TO message;
ALTER TABLE subject RENAME COLUMN encore_at TO delayed_repeat_at;
ALTER TABLE subject RENAME COLUMN encores TO delayed_repeats;
ALTER INDEX subject_encore RENAME TO subject_delayed_repeat;

-- The hash of the message, by which one that equals it is recognised without being read.
ALTER TABLE subject ADD COLUMN digest bigint NOT NULL DEFAULT 0;

-- Of a pod: the journal of the agent that is the other side.
ALTER TABLE subject ADD COLUMN journal text;
UPDATE subject SET journal = message::jsonb ->> 'journal' WHERE kind = 'pod' AND message IS NOT NULL;

-- Records on no subject (dead letters, alerts), until the bus has them (shared/src/muster/notices.py).
-- at: seconds since 1970.
CREATE TABLE notice (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic       text             NOT NULL,
    key         text             NOT NULL,
    value       bytea            NOT NULL,
    event_id    text             NOT NULL,
    at          double precision NOT NULL,
    traceparent text
);

INSERT INTO notice (topic, key, value, event_id, at, traceparent)
SELECT topic, key, convert_to(value, 'UTF8'), event_id, extract(epoch FROM written_at), traceparent
FROM outbox WHERE kind IS NULL AND parked_for IS NULL ORDER BY id;

DROP TABLE outbox;
