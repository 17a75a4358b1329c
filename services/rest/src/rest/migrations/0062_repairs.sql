-- Remediation and release of nodes: until when they may take, the preflight job (user~name), the
-- actions whose orders a release ends, and who asked for it where that is a person.

ALTER TABLE alert_action
    ADD COLUMN rule text NOT NULL DEFAULT '',
    ADD COLUMN ends_by timestamptz,
    ADD COLUMN job text,
    ADD COLUMN takes_back text[] NOT NULL DEFAULT '{}',
    ADD COLUMN asked_by text;

CREATE INDEX alert_action_running ON alert_action (action) WHERE outcome = 'running';
