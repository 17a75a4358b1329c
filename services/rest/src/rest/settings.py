"""REST's settings. Units are in the names."""

from muster.passwords import AdminPassword
from muster.settings import DatabaseSettings
from pydantic import AliasChoices, Field, PositiveFloat, PositiveInt, SecretStr


class RestSettings(DatabaseSettings):
    """What REST is told by its environment (``MUSTER_…``)."""

    http_port: int = Field(
        8080,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("MUSTER_REST_PORT", "MUSTER_HTTP_PORT"),
        description="The API; 0: any free port.",
    )
    admin_password: AdminPassword | None = Field(
        None, description="Of the user admin, who is made where no user is an admin."
    )
    webhook_key: SecretStr = Field(
        SecretStr(""), description="Webhook secrets are made from it; the same as Alerting's."
    )
    scheduler_url: str | None = Field(
        None, description="Where the Scheduler answers why, queue and quotas; none: not asked."
    )

    body_bytes: PositiveInt = Field(64 * 1024, description="Of a request; job files have 1 MiB.")
    body_timeout_s: PositiveFloat = Field(60.0, description="A body has come by then; or 408.")
    bodies_bytes: PositiveInt = Field(
        128 * 1024 * 1024, description="Of all requests that are being read; more: 503."
    )
    page_default: PositiveInt = Field(5000, description="Jobs on a page, when nobody says.")
    page_largest: PositiveInt = 50_000
    peer_timeout_s: PositiveFloat = Field(5.0, description="An agent or the Scheduler answers.")

    virtual_clusters_every_s: PositiveFloat = Field(
        10.0, description="How often the Scheduler is asked for the virtual clusters."
    )
    virtual_clusters_again_s: PositiveFloat = Field(
        1.0, description="At most so often at once, where a job names one that is not known."
    )

    config_bytes: PositiveInt = Field(
        256 * 1024, description="Of what is set of virtual clusters and policy, at the most."
    )
    config_versions: PositiveInt = Field(200, description="So many versions of it are kept.")
    config_check_s: PositiveFloat = Field(
        20.0, description="The Scheduler has checked what is to be set by then; or 503."
    )

    config_what_if_s: PositiveFloat = Field(
        30.0, description="The Scheduler has said by then what it would do, or that it looks on."
    )
    config_delay_s: PositiveFloat = Field(
        600.0, description="Who would delay a virtual cluster's gangs by so much says it is meant."
    )

    submit_batch: PositiveInt = Field(100, description="Submissions in one transaction.")
    submit_batch_bytes: PositiveInt = Field(8 * 1024 * 1024, description="Of their files.")
    submit_queue: PositiveInt = Field(2000, description="Submissions that wait; more: 503.")
    submit_queue_bytes: PositiveInt = Field(64 * 1024 * 1024, description="Of their files.")
    submit_timeout_s: PositiveFloat = Field(20.0, description="Then the answer is 503.")
    idempotency_hours: PositiveInt = Field(24, description="Keys are remembered this long.")

    token_life_s: PositiveInt = Field(
        7 * 86_400, le=7 * 86_400, description="Of a login, at the most; it can be renewed."
    )
    login_s: PositiveInt = Field(
        90 * 86_400, description="A login is renewed for so long after its password was given."
    )
    token_use_s: PositiveFloat = Field(
        300.0, description="The last use of a token is written at most so often."
    )
    token_cache_s: PositiveFloat = Field(
        1.0, description="A token revoked at another replica still works here for this long."
    )
    token_cache_entries: PositiveInt = 10_000
    logins_per_user: PositiveInt = Field(1000, description="Older ones are logged out.")
    application_tokens: PositiveInt = Field(100, description="Of one user.")
    password_attempts: PositiveInt = Field(
        10,
        description="Wrong passwords of one user from one address in password_window_s; then 429."
        " Ten times as many of one user, and from one address.",
    )
    password_window_s: PositiveFloat = Field(300.0, description="From the first one on.")
    password_failures_audited: PositiveInt = Field(
        100, description="In password_window_s; more are only counted, or an attack fills the disk."
    )
    password_hashes: PositiveInt = Field(1, description="Passwords hashed at a time (46 MiB each).")

    log_streams_per_user: PositiveInt = Field(20, description="Followed logs at a time.")
    log_streams_of_all: PositiveInt = Field(500, description="Of all users together.")
    log_tail_bytes: PositiveInt = Field(16 * 1024, description="What tail-mode shows.")
    log_bytes: PositiveInt = Field(16 * 1024 * 1024, description="Of one plain answer.")
    stream_heartbeat_s: PositiveFloat = 15.0

    settings_repeat_s: PositiveFloat = Field(300.0, description="Settings are said again.")
    removed_days: PositiveInt = Field(1, description="Removals are said again for this long.")
    maintenance_s: PositiveFloat = Field(60.0, description="How often old rows are looked for.")
    maintenance_rows: PositiveInt = 5000
    audit_days: PositiveInt = Field(365, description="The audit log is kept this long.")
