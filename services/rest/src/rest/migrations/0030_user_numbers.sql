-- Tasks of a user run under the uid that belongs to this number; a removed one is never given again.
ALTER TABLE account ADD COLUMN number integer GENERATED ALWAYS AS IDENTITY UNIQUE;
