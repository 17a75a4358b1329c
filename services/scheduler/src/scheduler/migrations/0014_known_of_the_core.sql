-- Gangs that were told to leave for others in the last hour: of which job, for which (preempted_at in
-- seconds since 1970). virtual_cluster: inside which; NULL: a guest, for a guarantee.
CREATE TABLE preemption (
    number          bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    preempted_at    double precision NOT NULL,
    job             text             NOT NULL,
    for_job         text             NOT NULL,
    virtual_cluster text
);

-- How many times as long as expected gangs have waited, by the kind of expectation, the oldest first.
CREATE TABLE calibration (
    kind   text               PRIMARY KEY,
    ratios double precision[] NOT NULL
) WITH (fillfactor = 70);

-- What is an hour old is known without being told.
CREATE FUNCTION note_preemption() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO change (what, name) VALUES ('preemption', NEW.number::text) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON preemption FOR EACH ROW EXECUTE FUNCTION note_preemption();

CREATE FUNCTION note_calibration() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO change (what, name) VALUES ('calibration', NEW.kind) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON calibration
    FOR EACH ROW EXECUTE FUNCTION note_calibration();

-- Since when, and for when, the gang was expected first to start, and the kind of that.
ALTER TABLE gang ADD COLUMN expected jsonb;
