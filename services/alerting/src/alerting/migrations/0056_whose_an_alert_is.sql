-- Whose job an alert is about, and which node, as subject_of of muster.contracts.alerts reads it in its
-- labels. Older replicas write these columns too without knowing of them.
ALTER TABLE alert
    ADD COLUMN "user" text GENERATED ALWAYS AS (
        coalesce(
            nullif(labels ->> 'user', ''), nullif(labels ->> 'username', ''),
            nullif(split_part(labels ->> 'jobName', '~', 1), labels ->> 'jobName'),
            nullif(split_part(labels ->> 'job_name', '~', 1), labels ->> 'job_name')
        )
    ) STORED,
    ADD COLUMN node text GENERATED ALWAYS AS (
        coalesce(nullif(labels ->> 'node', ''), nullif(labels ->> 'node_name', ''))
    ) STORED;
