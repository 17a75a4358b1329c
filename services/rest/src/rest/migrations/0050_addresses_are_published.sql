-- REST publishes the confirmed mail addresses of accounts; the revision rises with each change.
ALTER TABLE account ADD COLUMN address_revision bigint NOT NULL DEFAULT 1;
