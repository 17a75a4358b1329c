-- Owners share the slots of a lane. A receiver's owner is written with its next event.
ALTER TABLE receiver ADD COLUMN owner text NOT NULL DEFAULT '';
