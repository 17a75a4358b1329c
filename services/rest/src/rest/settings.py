"""REST's settings. Units are in the names."""

from pathlib import Path
from urllib.parse import urlsplit

from muster.addresses import networks_of
from muster.passwords import AdminPassword
from muster.protocol import HIGHEST_PRIORITY, LOWEST_PRIORITY
from muster.sealing import check_public_key
from muster.settings import ClusterKeySettings, DatabaseSettings, JobNamespaceSettings, Port
from pydantic import (
    AliasChoices,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
)


class RestSettings(DatabaseSettings, ClusterKeySettings, JobNamespaceSettings):
    """The API, its limits, and its reads of other services."""

    http_port: Port = Field(
        8080,
        validation_alias=AliasChoices("MUSTER_REST_PORT", "MUSTER_HTTP_PORT"),
        description="The API; 0: any free port.",
    )
    admin_password: AdminPassword | None = Field(
        None, description="Of the user admin, who is made an admin where there is none."
    )
    webhook_key: SecretStr = Field(
        SecretStr(""),
        description="The key from which webhook secrets and the codes that confirm mail addresses"
        " are made; the same as Alerting's.",
    )
    secrets_public_key: str = Field(
        "",
        description="The Launcher's public key, to which REST seals the secrets of job files:"
        " `python -m muster.make_secrets_key` prints a pair. Empty: REST refuses such files.",
    )
    scheduler_url: str | None = Field(
        None,
        description="Where REST reads reasons, queue and quotas, as http://scheduler:8082. Several"
        " Schedulers: their URLs with commas, or one name with all addresses; REST finds the"
        " leader. None: REST does not ask.",
    )
    alerting_url: str | None = Field(
        None,
        description="Where REST reads alerts, as http://alerting:8083; several with commas. None:"
        " REST does not ask.",
    )
    alertmanager_token: SecretStr = Field(
        SecretStr(""),
        description="The token that Alertmanager sends with its alerts. It opens nothing else."
        " Empty: REST takes no alerts.",
    )
    agent_networks: str = Field(
        "127.0.0.0/8, ::1/128",
        description="Agents report where REST reads their logs; REST connects to addresses in these"
        " networks only, as 10.0.0.0/8, fd00::/8. By default this machine, as for `muster up`: a"
        " cluster's operator names the nodes' network.",
    )
    kube_api_url: str | None = Field(
        None,
        pattern=r"^https://[^/?#@\s]+$",
        description="The API server, as https://kubernetes.default.svc. REST reads there whether"
        " claims of storages are bound, and refuses jobs with others. None: agents find out when a"
        " task starts.",
    )
    kube_service_account: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="The folder with `token` and `ca.crt`, by which REST reads claims.",
    )
    resolver_threads: PositiveInt = Field(
        4, description="Look-ups of agents' names at once, and of Schedulers' names."
    )

    user_requests_per_s: PositiveFloat = Field(
        500.0, description="Requests of one user in the long run; then 429. Scripts submit 300/s."
    )
    user_requests_burst: PositiveInt = Field(5000, description="Of them at once.")
    address_requests_per_s: PositiveFloat = Field(
        50.0, description="Requests of one address without a valid token; then 429."
    )
    address_requests_burst: PositiveInt = Field(500, description="Of them at once.")
    requests_in_progress: PositiveInt = Field(
        100,
        description="Requests of one user, or of one address without a valid token, in progress at"
        " a time; then 429.",
    )
    limited_callers: PositiveInt = Field(
        20_000, description="Users and addresses whose requests are counted."
    )

    body_bytes: PositiveInt = Field(
        64 * 1024, description="The size limit of a request; a job file may have 1 MiB."
    )
    body_timeout_s: PositiveFloat = Field(
        60.0, description="The time limit for receiving a body; then 408."
    )
    bodies_bytes: PositiveInt = Field(
        128 * 1024 * 1024,
        description="The most bytes of all requests that are being read; above it 503.",
    )
    page_default: PositiveInt = Field(5000, description="Entries on a page by default.")
    page_largest: PositiveInt = Field(50_000, description="The most entries on a page.")
    peer_timeout_s: PositiveFloat = Field(
        5.0, description="The time limit of a request to an agent or the Scheduler."
    )
    peer_connect_s: PositiveFloat = Field(
        1.5,
        description="How long REST waits for a connection to one address of an agent or a"
        " Scheduler; then it tries the next one.",
    )

    usage_agents: PositiveInt = Field(
        64, description="Agents that are asked at a time for what their tasks use."
    )
    usage_timeout_s: PositiveFloat = Field(
        20.0, description="How long they are waited for; the answer names those that are missing."
    )
    usage_settle_s: PositiveFloat = Field(
        600.0, description="How long after its start REST makes no report of a week."
    )
    usage_answers_per_user: PositiveInt = Field(
        4, description="Of one user in progress at a time; then 429."
    )

    virtual_clusters_every_s: PositiveFloat = Field(
        10.0, description="How often REST reads the virtual clusters from the Scheduler."
    )
    virtual_clusters_again_s: PositiveFloat = Field(
        1.0, description="The least time between two reads when a job names an unknown one."
    )

    config_bytes: PositiveInt = Field(
        256 * 1024, description="The size limit of a scheduling configuration."
    )
    config_versions: PositiveInt = Field(
        200, description="The most kept versions of the configuration."
    )
    config_check_s: PositiveFloat = Field(
        20.0, description="The time limit of the Scheduler's check; then 503."
    )

    config_what_if_s: PositiveFloat = Field(
        30.0, description="The time limit of one request for a what-if."
    )
    config_delay_s: PositiveFloat = Field(
        600.0,
        description="The delay of a virtual cluster's gangs above which a change must be accepted.",
    )

    kube_host_network: str | None = Field(
        None,
        description="On Kubernetes, as the agents': virtual clusters, with commas, whose jobs may"
        " have more than one task or `rdma`; REST refuses such jobs of others. *: all. None: REST"
        " does not check.",
    )
    priority_cap: int = Field(
        100,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_PRIORITY,
        description="The highest priority that a user may ask for who has no cap of their own:"
        " 100 is OpenPAI's prod, the highest class that its server took; -1: opportunistic only.",
    )

    submit_batch: PositiveInt = Field(100, description="The most submissions in one transaction.")
    submit_batch_bytes: PositiveInt = Field(
        8 * 1024 * 1024, description="The most bytes of their files."
    )
    submit_queue: PositiveInt = Field(
        2000, description="The most waiting submissions; above it 503."
    )
    submit_queue_bytes: PositiveInt = Field(
        64 * 1024 * 1024, description="The most bytes of their files."
    )
    submit_timeout_s: PositiveFloat = Field(
        20.0, description="The longest wait of a submission; then 503."
    )
    idempotency_hours: PositiveInt = Field(24, description="How long idempotency keys are kept.")

    token_life_s: PositiveInt = Field(
        7 * 86_400, le=7 * 86_400, description="How long a login is valid unless it is renewed."
    )
    login_s: PositiveInt = Field(
        90 * 86_400, description="How long after its password was given a login can be renewed."
    )
    token_use_s: PositiveFloat = Field(
        300.0, description="The least time between two writes of a token's last use."
    )
    token_cache_s: PositiveFloat = Field(
        1.0, description="A token revoked at another replica still works here for this long."
    )
    token_cache_entries: PositiveInt = Field(10_000, description="The most cached tokens.")
    logins_per_user: PositiveInt = Field(1000, description="Older ones are logged out.")
    application_tokens: PositiveInt = Field(100, description="Of one user.")
    password_attempts: PositiveInt = Field(
        10,
        description="The most wrong passwords for one user from one address in password_window_s;"
        " then 429. For one user, and from one address, the limit is ten times as high.",
    )
    password_window_s: PositiveFloat = Field(
        300.0, description="The time in which wrong passwords are counted, from the first one."
    )
    password_failures_audited: PositiveInt = Field(
        100,
        description="The most audit entries of wrong passwords in password_window_s.",
    )
    confirmation_life_s: PositiveInt = Field(
        3600, description="How long a code is valid that confirms a mail address."
    )
    confirmation_mails_per_hour: PositiveInt = Field(
        5, description="The most mailed codes for one user, and to one address, in an hour."
    )
    password_hashes: PositiveInt = Field(1, description="Passwords hashed at a time (46 MiB each).")

    log_streams_per_user: PositiveInt = Field(
        20, description="Logs read or followed at a time; then 429."
    )
    log_streams_of_all: PositiveInt = Field(500, description="Of all users together.")
    event_streams_per_user: PositiveInt = Field(
        5, description="Streams of events at a time; then 429. Each is a reader of the bus."
    )
    event_streams_of_all: PositiveInt = Field(100, description="Of all users together.")
    log_tail_bytes: PositiveInt = Field(16 * 1024, description="What tail-mode shows.")
    log_bytes: PositiveInt = Field(16 * 1024 * 1024, description="Of one plain answer.")
    stream_heartbeat_s: PositiveFloat = Field(
        15.0,
        description="How often a silent stream sends a heartbeat, and a followed log checks its"
        " caller's token.",
    )

    settings_repeat_s: PositiveFloat = Field(
        300.0, description="How often settings are republished."
    )
    removed_days: PositiveInt = Field(
        1, description="How long removals of settings are republished."
    )
    maintenance_s: PositiveFloat = Field(60.0, description="How often old rows are looked for.")
    maintenance_rows: PositiveInt = Field(
        5000, description="The most rows removed in one statement."
    )
    audit_days: PositiveInt = Field(365, description="The audit log is kept this long.")

    @field_validator("secrets_public_key")
    @classmethod
    def _is_a_key(cls, key: str) -> str:
        if key:
            check_public_key(key)
        return key

    @field_validator("agent_networks")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks_of(text)
        return text

    @field_validator("scheduler_url", "alerting_url")
    @classmethod
    def _are_plain_urls(cls, text: str | None) -> str | None:
        for url in _parts(text):
            parts = urlsplit(url)
            is_plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            if not is_plain or parts.username is not None or parts.query or parts.fragment:
                raise ValueError(f"{url!r} is no plain http or https address")
        return text

    @property
    def scheduler_urls(self) -> tuple[str, ...]:
        """Those of ``scheduler_url``, without a slash at the end."""
        return _parts(self.scheduler_url)

    @property
    def alerting_urls(self) -> tuple[str, ...]:
        """Those of ``alerting_url``, without a slash at the end."""
        return _parts(self.alerting_url)


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip().rstrip("/") for part in (text or "").split(",") if part.strip())
