"""REST's settings. Units are in the names."""

from muster.settings import DatabaseSettings
from pydantic import AliasChoices, Field, PositiveFloat, PositiveInt, SecretStr


class RestSettings(DatabaseSettings):
    """Settings of REST, from the environment (``MUSTER_…``)."""

    http_port: int = Field(
        8080,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("MUSTER_REST_PORT", "MUSTER_HTTP_PORT"),
        description="Port of the API; 0: any free.",
    )
    admin_password: SecretStr | None = Field(
        None, min_length=6, description="Password of the user admin, created at the first start."
    )
    webhook_key: SecretStr = Field(
        SecretStr(""),
        description="Key that webhook secrets are derived from; the same as in Alerting.",
    )
    scheduler_url: str | None = Field(
        None, description="URL of the Scheduler; without it there are no reasons, queue and quotas."
    )

    body_bytes: PositiveInt = Field(
        64 * 1024, description="Size of a request body, at most; 1 MiB for job files."
    )
    body_timeout_s: PositiveFloat = Field(60.0, description="Time to receive a body; then 408.")
    bodies_bytes: PositiveInt = Field(
        128 * 1024 * 1024, description="Size of all bodies being received together; beyond it 503."
    )
    page_default: PositiveInt = Field(5000, description="Jobs on a page by default.")
    page_largest: PositiveInt = 50_000
    peer_timeout_s: PositiveFloat = Field(
        5.0, description="Timeout of a read from an agent or the Scheduler."
    )

    virtual_clusters_every_s: PositiveFloat = Field(
        10.0, description="Interval of reading the virtual clusters from the Scheduler."
    )
    virtual_clusters_again_s: PositiveFloat = Field(
        1.0,
        description="Least time between such reads when a job names an unknown virtual cluster.",
    )

    config_bytes: PositiveInt = Field(
        256 * 1024, description="Size of a configuration of virtual clusters and policy, at most."
    )
    config_versions: PositiveInt = Field(200, description="Versions of the configuration to keep.")
    config_check_s: PositiveFloat = Field(
        20.0, description="Timeout of the Scheduler's check of a configuration; then 503."
    )

    config_what_if_s: PositiveFloat = Field(
        30.0, description="Timeout of a what-if request to the Scheduler."
    )
    config_delay_s: PositiveFloat = Field(
        600.0,
        description="Delay of a virtual cluster's gangs beyond which a change needs acceptDelays.",
    )

    submit_batch: PositiveInt = Field(100, description="Submissions in one transaction, at most.")
    submit_batch_bytes: PositiveInt = Field(8 * 1024 * 1024, description="Of their files.")
    submit_queue: PositiveInt = Field(
        2000, description="Waiting submissions, at most; beyond it 503."
    )
    submit_queue_bytes: PositiveInt = Field(64 * 1024 * 1024, description="Of their files.")
    submit_timeout_s: PositiveFloat = Field(
        20.0, description="Time to store a submission; then 503."
    )
    idempotency_hours: PositiveInt = Field(
        24, description="Retention of idempotency keys, in hours."
    )

    token_life_s: PositiveInt = Field(7 * 86_400, description="Lifetime of a login token, at most.")
    token_cache_s: PositiveFloat = Field(
        1.0, description="Time that a token revoked at another replica still works here."
    )
    token_cache_entries: PositiveInt = 10_000
    logins_per_user: PositiveInt = Field(
        1000, description="Login tokens of one user, at most; the oldest are revoked."
    )
    application_tokens: PositiveInt = Field(
        100, description="Application tokens of one user, at most."
    )
    login_attempts: PositiveInt = Field(
        10, description="Failed logins in login_window_s; then 429."
    )
    login_window_s: PositiveFloat = 60.0
    password_hashes: PositiveInt = Field(
        1, description="Concurrent password hashes, at most (46 MiB each)."
    )

    log_streams_per_user: PositiveInt = Field(20, description="Followed logs of one user, at most.")
    log_streams_of_all: PositiveInt = Field(500, description="Followed logs of all users, at most.")
    log_tail_bytes: PositiveInt = Field(
        16 * 1024, description="Size of the end of a log that tail-mode shows."
    )
    log_bytes: PositiveInt = Field(
        16 * 1024 * 1024, description="Size of a log in one answer, at most."
    )
    stream_heartbeat_s: PositiveFloat = 15.0

    settings_repeat_s: PositiveFloat = Field(
        300.0, description="Interval of republishing all settings."
    )
    removed_days: PositiveInt = Field(
        1, description="Days that the removal of a setting is republished."
    )
    maintenance_s: PositiveFloat = Field(60.0, description="Interval of removing old rows.")
    maintenance_rows: PositiveInt = 5000
    audit_days: PositiveInt = Field(365, description="Retention of the audit log, in days.")
