-- What a process that stands by has to read anew: gangs of which a row, or a placement, was written
-- or deleted, and nodes, each with the transaction that did it. Whoever writes, it is noted. Rows are
-- deleted after a while: none is kept of a transaction before leader.changes_from.
CREATE TABLE change (
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    what text NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (xid, what, name)
);
ALTER TABLE leader ADD COLUMN changes_from xid8 NOT NULL DEFAULT '0';
CREATE INDEX placement_gang ON placement (gang);

CREATE FUNCTION note_gang() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO change (what, name) VALUES ('gang', coalesce(NEW.gang, OLD.gang))
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE FUNCTION note_node() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO change (what, name) VALUES ('node', coalesce(NEW.node, OLD.node))
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON gang
    FOR EACH ROW EXECUTE FUNCTION note_gang();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON placement
    FOR EACH ROW EXECUTE FUNCTION note_gang();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON node
    FOR EACH ROW EXECUTE FUNCTION note_node();
