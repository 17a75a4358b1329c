-- Deliveries in a row that were given up by the receiver's fault: many of them disable it.
ALTER TABLE receiver ADD COLUMN given_up integer NOT NULL DEFAULT 0;
