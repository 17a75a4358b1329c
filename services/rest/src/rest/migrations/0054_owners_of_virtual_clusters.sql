-- The virtual clusters that a user owns: they may subscribe to the events of everybody's jobs there.
ALTER TABLE account ADD COLUMN owned_virtual_clusters text[] NOT NULL DEFAULT '{}';
