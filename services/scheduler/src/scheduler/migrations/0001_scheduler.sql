-- Who decides: one row. Every deciding transaction checks epoch and holder first.
CREATE TABLE leader (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    epoch      bigint      NOT NULL DEFAULT 0,
    holder     text        NOT NULL DEFAULT '',
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO leader DEFAULT VALUES;

-- The Launcher's newest word about each gang that is not over (muster.contracts.gangs.GangRequest).
-- is_dirty: no cycle has seen it yet. reason: what the last word about it gave.
CREATE TABLE gang (
    gang       text    PRIMARY KEY,
    request    jsonb   NOT NULL,
    is_dirty   boolean NOT NULL DEFAULT true,
    is_refused boolean NOT NULL DEFAULT false,
    reason     jsonb
) WITH (fillfactor = 70);
CREATE INDEX gang_dirty ON gang (gang) WHERE is_dirty;

-- Where each pod is, until the Launcher has dropped it and a node report shows what it held free.
-- epoch: the leader's that placed it.
CREATE TABLE placement (
    pod          text        PRIMARY KEY,
    gang         text        NOT NULL,
    node         text        NOT NULL,
    journal      text        NOT NULL,
    address      text        NOT NULL,
    log_url      text,
    gpus         integer[]   NOT NULL,
    ports        jsonb       NOT NULL,
    cpu          bigint      NOT NULL,
    memory_mb    bigint      NOT NULL,
    epoch        bigint      NOT NULL,
    is_wanted    boolean     NOT NULL DEFAULT true,
    is_occupying boolean     NOT NULL DEFAULT true,
    free_from    bigint      NOT NULL DEFAULT 0,
    lost_lease   bigint,
    placed_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80);

-- No GPU and no port has two live pods: the database refuses it, whatever a process believes.
CREATE TABLE held_gpu (
    node text    NOT NULL,
    gpu  integer NOT NULL,
    pod  text    NOT NULL,
    PRIMARY KEY (node, gpu)
);
CREATE INDEX held_gpu_pod ON held_gpu (pod);
CREATE TABLE held_port (
    node text    NOT NULL,
    port integer NOT NULL,
    pod  text    NOT NULL,
    PRIMARY KEY (node, port)
);
CREATE INDEX held_port_pod ON held_port (pod);

-- Every node that was ever heard. lease: how often it was lost.
CREATE TABLE node (
    node       text        PRIMARY KEY,
    lease      bigint      NOT NULL DEFAULT 0,
    is_lost    boolean     NOT NULL DEFAULT false,
    lost_since timestamptz
);
