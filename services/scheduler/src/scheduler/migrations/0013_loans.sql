-- lender: the virtual cluster in whose quota the gang is placed; NULL: its own.
ALTER TABLE gang
    ADD COLUMN lender text;
