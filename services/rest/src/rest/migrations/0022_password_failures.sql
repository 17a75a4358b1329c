-- Failed passwords, counted by all replicas together. The subject is a digest of a user, an address,
-- or both: people also type passwords where a user belongs.
CREATE TABLE password_failure (
    subject    bytea       PRIMARY KEY,
    failures   integer     NOT NULL,
    expires_at timestamptz NOT NULL
);
