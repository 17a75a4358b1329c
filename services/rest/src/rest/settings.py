"""REST's settings. Units are in the names."""

from muster.addresses import networks_of
from muster.protocol import HIGHEST_PRIORITY, LOWEST_PRIORITY
from muster.settings import ClusterKeySettings, DatabaseSettings
from pydantic import (
    AliasChoices,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
)


class RestSettings(DatabaseSettings, ClusterKeySettings):
    """What REST is told by its environment (``MUSTER_…``)."""

    http_port: int = Field(
        8080,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("MUSTER_REST_PORT", "MUSTER_HTTP_PORT"),
        description="The API; 0: any free port.",
    )
    admin_password: SecretStr | None = Field(
        None, min_length=6, description="Of the user admin, who is made at the first start."
    )
    webhook_key: SecretStr = Field(
        SecretStr(""), description="Webhook secrets are made from it; the same as Alerting's."
    )
    scheduler_url: str | None = Field(
        None, description="Where the Scheduler answers why, queue and quotas; none: not asked."
    )
    agent_networks: str = Field(
        "127.0.0.0/8, ::1/128",
        description="Agents report where REST reads their logs; REST connects to addresses in these"
        " networks only, as 10.0.0.0/8, fd00::/8. By default this machine, as for `muster up`: a"
        " cluster's operator names the nodes' network.",
    )
    resolver_threads: PositiveInt = Field(4, description="Look-ups of agents' names at once.")

    user_requests_per_s: PositiveFloat = Field(
        500.0, description="Requests of one user in the long run; then 429. Scripts submit 300/s."
    )
    user_requests_burst: PositiveInt = Field(5000, description="Of them at once.")
    address_requests_per_s: PositiveFloat = Field(
        50.0, description="Requests of one address without a valid token; then 429."
    )
    address_requests_burst: PositiveInt = Field(500, description="Of them at once.")
    limited_callers: PositiveInt = Field(
        20_000, description="Users and addresses whose requests are counted."
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

    priority_cap: int = Field(
        100,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_PRIORITY,
        description="The highest priority that a user may ask for who has no cap of their own:"
        " 100 is OpenPAI's prod, the highest class that its server took; -1: opportunistic only.",
    )

    submit_batch: PositiveInt = Field(100, description="Submissions in one transaction.")
    submit_batch_bytes: PositiveInt = Field(8 * 1024 * 1024, description="Of their files.")
    submit_queue: PositiveInt = Field(2000, description="Submissions that wait; more: 503.")
    submit_queue_bytes: PositiveInt = Field(64 * 1024 * 1024, description="Of their files.")
    submit_timeout_s: PositiveFloat = Field(20.0, description="Then the answer is 503.")
    idempotency_hours: PositiveInt = Field(24, description="Keys are remembered this long.")

    token_life_s: PositiveInt = Field(7 * 86_400, description="Of a login, at the most.")
    token_cache_s: PositiveFloat = Field(
        1.0, description="A token revoked at another replica still works here for this long."
    )
    token_cache_entries: PositiveInt = 10_000
    logins_per_user: PositiveInt = Field(1000, description="Older ones are logged out.")
    application_tokens: PositiveInt = Field(100, description="Of one user.")
    login_attempts: PositiveInt = Field(
        10, description="Failed logins in login_window_s; then 429."
    )
    login_window_s: PositiveFloat = 60.0
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

    @field_validator("agent_networks")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks_of(text)
        return text
