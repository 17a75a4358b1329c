-- The list of jobs is searched by any part of a name. An index of all parts of three characters
-- answers that; the extension pg_trgm would too, but not every PostgreSQL brings it.
CREATE FUNCTION trigrams(words text) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
    SELECT coalesce(array_agg(substr(lowered, first, 3)), '{}')
    FROM (SELECT lower(words) AS lowered) AS given, generate_series(1, length(lowered) - 2) AS first
$$;

-- A short pending list: whoever fills it sorts it in, and a submission must not wait long for that.
CREATE INDEX job_trigrams ON job
USING gin (trigrams(username || ' ' || name || ' ' || virtual_cluster))
WITH (gin_pending_list_limit = 512);
