-- A row for each node name that two machines have, or had, at these addresses; its alert fires while
-- since is there.
CREATE TABLE clash_watch (
    node          text        NOT NULL,
    address       text        NOT NULL,
    other_address text        NOT NULL,
    newest_at     timestamptz NOT NULL,
    heard_at      timestamptz NOT NULL,
    since         timestamptz,
    due_at        timestamptz,
    PRIMARY KEY (node, address, other_address)
);

CREATE INDEX clash_watch_due ON clash_watch (due_at) WHERE due_at IS NOT NULL;
