-- Subscriptions came from a file too, with ids that begin with file/. Nobody sends these any more.
UPDATE delivery SET state = 'given-up', why = 'unsubscribed', ended_at = now(), digest_at = NULL,
    reason = 'the subscriptions file was removed', lease = NULL, lease_until = NULL
WHERE subscription LIKE 'file/%' AND state = 'waiting';

DELETE FROM receiver WHERE subscription LIKE 'file/%';
