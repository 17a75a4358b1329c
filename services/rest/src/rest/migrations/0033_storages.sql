-- The storages that job files may name. "users" may hold '*': everybody.
CREATE TABLE storage (
    name             text    PRIMARY KEY,
    claim            text,
    host_path        text,
    sub_path         text    NOT NULL,
    is_read_only     boolean NOT NULL,
    is_default       boolean NOT NULL,
    users            text[]  NOT NULL,
    virtual_clusters text[]  NOT NULL,
    CHECK (claim IS NOT NULL OR host_path IS NOT NULL)
);
