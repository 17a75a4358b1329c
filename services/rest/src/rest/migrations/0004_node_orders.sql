-- Operators' orders about nodes, published on settings-changed. An order that is over is published
-- as over for a while.
CREATE TABLE node_order (
    node       text        PRIMARY KEY,
    "order"    text        NOT NULL,
    ordered_by text        NOT NULL,
    ordered_at timestamptz NOT NULL DEFAULT now(),
    revision   bigint      NOT NULL DEFAULT 1
);
