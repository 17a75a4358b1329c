-- How long ended gangs held their places: of each user, pattern of job names and shape the newest
-- ones, the oldest first: when each ended (seconds since 1970), and whole seconds.
CREATE TABLE run_time (
    user_name text               NOT NULL,
    name      text               NOT NULL,
    shape     text               NOT NULL,
    ended_at  double precision[] NOT NULL,
    seconds   integer[]          NOT NULL,
    PRIMARY KEY (user_name, name, shape)
) WITH (fillfactor = 70);

CREATE FUNCTION note_run_time() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    found run_time := coalesce(NEW, OLD);
BEGIN
    INSERT INTO change (what, name) VALUES
        ('run-time', json_build_array(found.user_name, found.name, found.shape)::text)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON run_time
    FOR EACH ROW EXECUTE FUNCTION note_run_time();

-- shape: of the gang as it was asked for first. expected_s: how long it would run, as it was learnt
-- then; NULL: nothing was known, or its user has said it.
ALTER TABLE gang
    ADD COLUMN shape      text,
    ADD COLUMN expected_s double precision;
