-- The columns that an earlier text of 0036 dropped: the older Alerting writes them.
ALTER TABLE event ADD COLUMN IF NOT EXISTS body text, ADD COLUMN IF NOT EXISTS subject text,
    ADD COLUMN IF NOT EXISTS text text, ADD COLUMN IF NOT EXISTS html text,
    ADD COLUMN IF NOT EXISTS thread text;
