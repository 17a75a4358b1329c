-- What administrators have set of virtual clusters and policy, as it was taken last: JSON, as it was
-- said (order and all); NULL: what was set is removed. No row: nothing was set ever.
CREATE TABLE configuration (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint      NOT NULL,
    version  bigint,
    content  text,
    taken_at timestamptz NOT NULL DEFAULT now()
);
