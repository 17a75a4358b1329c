-- Reservations are in order of since. Older services, after a rollback, still write the number.
ALTER TABLE reservation ALTER COLUMN number SET DEFAULT 0;
