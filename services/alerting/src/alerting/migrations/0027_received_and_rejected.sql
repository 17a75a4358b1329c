-- Names as in the glossary: Alerting receives records, and a reader rejects a record that it can't
-- handle.
ALTER TABLE dead_pile RENAME TO dead_letter_watch;
ALTER INDEX dead_pile_pkey RENAME TO dead_letter_watch_pkey;
ALTER INDEX dead_pile_due RENAME TO dead_letter_watch_due;
ALTER TABLE dead_letter_watch RENAME COLUMN heard_at TO received_at;
ALTER TABLE node_watch RENAME COLUMN heard_at TO received_at;
ALTER TABLE drift_watch RENAME COLUMN heard_at TO received_at;
ALTER TABLE clash_watch RENAME COLUMN heard_at TO received_at;
ALTER TABLE job_watch RENAME COLUMN dead_at TO rejected_at;
