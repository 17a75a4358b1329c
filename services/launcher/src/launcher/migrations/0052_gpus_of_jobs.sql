-- Whose job it is, and how many GPUs all its tasks ask for: open jobs are counted by these every half
-- minute, and to find them in the JSON of 100,000 jobs takes two seconds. Older Launchers write these
-- columns too without knowing of them.
CREATE FUNCTION gpus_of(spec jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT coalesce(sum((role ->> 'instances')::bigint * (role ->> 'gpus')::bigint), 0)::bigint
    FROM jsonb_array_elements(spec -> 'taskRoles') AS role
$$;

ALTER TABLE job
    ADD COLUMN virtual_cluster text GENERATED ALWAYS AS (spec ->> 'virtualCluster') STORED,
    ADD COLUMN user_name text GENERATED ALWAYS AS (state ->> 'user') STORED,
    ADD COLUMN gpus bigint GENERATED ALWAYS AS (gpus_of(spec)) STORED;
