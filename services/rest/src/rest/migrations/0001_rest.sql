-- Who may ask.
CREATE TABLE account (
    username         text        PRIMARY KEY,
    password_hash    text        NOT NULL,
    email            text        NOT NULL DEFAULT '',
    is_admin         boolean     NOT NULL DEFAULT false,
    virtual_clusters text[]      NOT NULL DEFAULT '{default}',
    extension        jsonb       NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT now()
);

-- Only digests: a token is shown once, to whom it was made for.
CREATE TABLE token (
    digest         bytea       PRIMARY KEY,
    id             text        NOT NULL UNIQUE,
    username       text        NOT NULL REFERENCES account ON DELETE CASCADE,
    is_application boolean     NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz
);

CREATE INDEX token_username ON token (username);
CREATE INDEX token_expiry ON token (expires_at) WHERE expires_at IS NOT NULL;

-- The read model of jobs: what a list shows in columns, the Launcher's last word in status.
CREATE TABLE job (
    id                text        PRIMARY KEY,
    username          text        NOT NULL,
    name              text        NOT NULL,
    virtual_cluster   text        NOT NULL,
    priority_class    text,
    total_tasks       integer     NOT NULL,
    total_gpus        integer     NOT NULL,
    total_task_roles  integer     NOT NULL,
    execution         text        NOT NULL DEFAULT 'START',
    stop_requested_by text,
    submitted_at      timestamptz NOT NULL,
    state             text        NOT NULL DEFAULT 'WAITING',
    attempt           integer     NOT NULL DEFAULT 0,
    retries_user      integer     NOT NULL DEFAULT 0,
    retries_platform  integer     NOT NULL DEFAULT 0,
    retries_resource  integer     NOT NULL DEFAULT 0,
    retry_at          timestamptz,
    created_at        timestamptz,
    launched_at       timestamptz,
    completed_at      timestamptz,
    exit_code         integer,
    reason            jsonb,
    status            jsonb,
    is_closed         boolean     NOT NULL DEFAULT false,
    UNIQUE (username, name)
) WITH (fillfactor = 60);

CREATE INDEX job_submitted ON job (submitted_at DESC, id);
CREATE INDEX job_closing ON job (completed_at) WHERE NOT is_closed AND completed_at IS NOT NULL;

-- What never changes about a job, apart from the row that often does.
CREATE TABLE job_file (
    job      text  PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    config   text  NOT NULL,
    spec     text  NOT NULL,
    warnings jsonb NOT NULL
);

-- The last word about each job attempt that was retried.
CREATE TABLE job_attempt (
    job     text    NOT NULL REFERENCES job ON DELETE CASCADE,
    attempt integer NOT NULL,
    status  jsonb   NOT NULL,
    PRIMARY KEY (job, attempt)
);

-- Answers that are given again for the same Idempotency-Key.
CREATE TABLE idempotency (
    username    text        NOT NULL,
    key         text        NOT NULL,
    body_digest bytea       NOT NULL,
    job         text,
    answer      text,
    made_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (username, key)
);

CREATE INDEX idempotency_made ON idempotency (made_at);

-- What Alerting is told on settings-changed. A removed one is told as removed for a while.
CREATE TABLE subscription (
    id         text        PRIMARY KEY,
    owner      text        NOT NULL,
    revision   bigint      NOT NULL DEFAULT 1,
    content    jsonb       NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz
);

CREATE INDEX subscription_owner ON subscription (owner);

-- Every write: who did what to which thing, from where.
CREATE TABLE audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    username text        NOT NULL,
    action   text        NOT NULL,
    object   text        NOT NULL,
    address  text        NOT NULL DEFAULT '',
    detail   jsonb
);

CREATE INDEX audit_at ON audit (at);
