-- A lost node that is gone for good. Its row stays: should the node come back, its lease goes on.
ALTER TABLE node ADD COLUMN is_removed boolean NOT NULL DEFAULT false;

-- What a lost pod held needs no row once the Launcher has let go of the pod: its node takes nothing
-- before a report names the lease, and what that report lists is not free.
DELETE FROM held_gpu WHERE pod IN
    (SELECT pod FROM placement WHERE lost_lease IS NOT NULL AND NOT is_wanted);
DELETE FROM held_port WHERE pod IN
    (SELECT pod FROM placement WHERE lost_lease IS NOT NULL AND NOT is_wanted);
DELETE FROM placement WHERE lost_lease IS NOT NULL AND NOT is_wanted;
