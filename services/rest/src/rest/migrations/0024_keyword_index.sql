-- The list of jobs is searched by any part of a name. An index of all parts of three characters
-- answers that; the extension pg_trgm would too, but not every PostgreSQL brings it.
-- A part is a number here, of which ten bits are a character's: numbers are quicker to make and to
-- sort. Characters that share these bits are told apart by the list itself.
CREATE FUNCTION trigrams(words text) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
DECLARE
    lowered text := lower(words);
    part integer := 0;
    found integer[] := '{}';
BEGIN
    FOR place IN 1 .. length(lowered) LOOP
        part := (part & 1048575) << 10 | (ascii(substr(lowered, place, 1)) & 1023);
        IF place > 2 THEN
            found := found || part;
        END IF;
    END LOOP;
    RETURN found;
END
$$;

-- A short pending list: whoever fills it sorts it in, and a submission must not wait long for that.
CREATE INDEX job_trigrams ON job
USING gin (trigrams(username || ' ' || name || ' ' || virtual_cluster))
WITH (gin_pending_list_limit = 512);
