-- Cells that are kept for gangs that wait: cells, and of them those that are charged for it (held),
-- lists of node and GPUs; bound: lists of cell and quota; number: later ones have higher ones; pods:
-- a digest of those that the gang waited for. Times in seconds since 1970.
CREATE TABLE reservation (
    gang      text             PRIMARY KEY,
    number    bigint           NOT NULL,
    cells     jsonb            NOT NULL,
    held      jsonb            NOT NULL,
    bound     jsonb            NOT NULL,
    starts_at double precision NOT NULL,
    since     double precision NOT NULL,
    pods      text             NOT NULL
);

-- What users have used up to then (seconds since 1970), by resource: amounts times seconds, faded.
CREATE TABLE usage (
    virtual_cluster  text             NOT NULL,
    is_opportunistic boolean          NOT NULL,
    user_name        text             NOT NULL,
    at               double precision NOT NULL,
    used             jsonb            NOT NULL,
    PRIMARY KEY (virtual_cluster, is_opportunistic, user_name)
) WITH (fillfactor = 70);

CREATE FUNCTION note_reservation() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO change (what, name) VALUES ('reservation', coalesce(NEW.gang, OLD.gang))
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON reservation
    FOR EACH ROW EXECUTE FUNCTION note_reservation();

CREATE FUNCTION note_usage() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    found usage := coalesce(NEW, OLD);
BEGIN
    INSERT INTO change (what, name) VALUES
        ('usage', json_build_array(
            found.virtual_cluster, found.is_opportunistic, found.user_name)::text)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON usage
    FOR EACH ROW EXECUTE FUNCTION note_usage();

-- The gang on whose kept cells it is, for which it may have to go.
ALTER TABLE gang ADD COLUMN passed text;
