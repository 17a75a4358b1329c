-- An event is kept as one message, and each kind of receiver gets it in its own form when it is sent.
-- A mail that confirms an address has none: its text has a secret, and is made when it is sent.
ALTER TABLE event ADD COLUMN message jsonb;

-- jsonb takes no NUL character.
UPDATE event SET body = regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')
WHERE strpos(body, '\u0000') > 0;

UPDATE event SET message = jsonb_build_object(
    'key', key,
    'name', name,
    'at', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    'severity', body::jsonb #>> '{data,severity}',
    'title', body::jsonb #>> '{data,title}',
    'text', body::jsonb #>> '{data,text}',
    'thread', coalesce('job/' || (body::jsonb #>> '{data,job}'),
                       'node/' || (body::jsonb #>> '{data,node}'), key),
    'data', (body::jsonb -> 'data') - 'severity' - 'title' - 'text',
    'alert', body::jsonb #>> '{data,alert}'
) WHERE body <> '';

-- The older Alerting still writes and reads these; a later release drops them.
ALTER TABLE event ALTER body DROP NOT NULL, ALTER subject DROP NOT NULL, ALTER text DROP NOT NULL,
    ALTER html DROP NOT NULL, ALTER thread DROP NOT NULL;
