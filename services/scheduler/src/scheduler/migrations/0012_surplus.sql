-- Pods that a gang could do without, by which it has grown: of each its name, since when it runs
-- (seconds since 1970), its class, by when it was told to leave and for which gang, if at all,
-- and whose cells it borrows.
ALTER TABLE gang
    ADD COLUMN extra jsonb NOT NULL DEFAULT '[]';
