-- The virtual cluster that an alert is about, as subject_of of muster.contracts.alerts reads it.
ALTER TABLE alert
    ADD COLUMN virtual_cluster text GENERATED ALWAYS AS (
        coalesce(nullif(labels ->> 'virtualCluster', ''), nullif(labels ->> 'virtual_cluster', ''))
    ) STORED;
