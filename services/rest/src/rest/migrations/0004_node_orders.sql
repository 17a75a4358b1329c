-- What operators ordered of nodes, told to the Scheduler on settings-changed. An order that is over
-- is told so for a while.
CREATE TABLE node_order (
    node       text        PRIMARY KEY,
    "order"    text        NOT NULL,
    ordered_by text        NOT NULL,
    ordered_at timestamptz NOT NULL DEFAULT now(),
    revision   bigint      NOT NULL DEFAULT 1
);
