-- Remediation and release of nodes: their time, and the orders that a release ends.

ALTER TABLE action
    ADD COLUMN timeout_s double precision NOT NULL DEFAULT 0,
    ADD COLUMN takes_back text[] NOT NULL DEFAULT '{}';
