-- Names as in the glossary. cut_off_since: since when the leader is cut off from the bus. backfill_of:
-- the gang on whose reserved cells it runs by backfill. elastic_pods: pods by which it has grown.
-- nominated: placements for its pods that are free when preempted gangs have ended.
ALTER TABLE leader RENAME COLUMN deaf_since TO cut_off_since;
ALTER TABLE gang RENAME COLUMN passed TO backfill_of;
ALTER TABLE gang RENAME COLUMN extra TO elastic_pods;
ALTER TABLE gang RENAME COLUMN reserved TO nominated;
