-- Whether the receiver was disabled until this version of its subscription: its owner knows that.
ALTER TABLE receiver ADD COLUMN was_disabled boolean NOT NULL DEFAULT false;
