-- A token's name is its owner's choice. A renewal gives a login its life_s anew. used_at is roughly
-- when it was used last.
ALTER TABLE token
    ADD COLUMN name    text NOT NULL DEFAULT '',
    ADD COLUMN life_s  integer,
    ADD COLUMN used_at timestamptz;

UPDATE token SET life_s = extract(epoch FROM expires_at - created_at) WHERE expires_at IS NOT NULL;

-- The row of a removed user stays, so that nobody else gets the name: jobs, topics and the audit log
-- know a user by it.
ALTER TABLE account ADD COLUMN removed_at timestamptz;
