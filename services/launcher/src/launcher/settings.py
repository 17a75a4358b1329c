"""Settings of the Launcher, from the environment (``MUSTER_…``). Units are in the names."""

from datetime import timedelta
from typing import Self

from muster.sealing import public_key_of
from muster.settings import DatabaseSettings, Port, names_in
from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from launcher.domain.model import Policy

_IN_ORDER = (
    ("retry_backoff_first_s", "retry_backoff_longest_s"),
    ("conflict_shortest_s", "conflict_longest_s"),
    ("closed_subjects_days", "kept_days"),
)
"""A job that is known answers for its gangs and pods as long as their subjects are kept."""


def keys_in(keys: SecretStr) -> list[str]:
    """The private keys of `secrets_keys`, the present one first."""
    return names_in(keys.get_secret_value())


class LauncherSettings(DatabaseSettings):
    """How jobs are stopped and retried, and how often the Launcher looks at its clock."""

    http_port: Port = Field(8081, description="The port of health and metrics; 0: any free port.")

    secrets_keys: SecretStr = Field(
        SecretStr(""),
        description="Private keys for the secrets of jobs, with commas. The first belongs to REST's"
        " MUSTER_SECRETS_PUBLIC_KEY; the others only open secrets of jobs from before a change."
        " `python -m muster.make_secrets_key` prints a pair.",
    )

    stop_grace_s: NonNegativeFloat = Field(
        30.0, description="The time from the request to stop a task to its kill."
    )
    preempt_grace_longest_s: NonNegativeFloat = Field(
        3600.0,
        description="The most grace of a preempted task, if the Scheduler's deadline is later.",
    )
    lost_grace_s: NonNegativeFloat = Field(
        5.0, description="The grace of pods that return with a lost node."
    )
    retry_backoff_first_s: PositiveFloat = Field(
        1.0, description="The first wait before a retry without cost; each further one doubles."
    )
    retry_backoff_longest_s: PositiveFloat = Field(300.0, description="The longest such wait.")
    retry_backoff_reset_s: PositiveFloat = Field(
        600.0, description="The run time of an attempt after which the waits restart at the first."
    )
    conflict_shortest_s: PositiveFloat = Field(
        60.0, description="The shortest wait after a conflict over resources; the wait is random."
    )
    conflict_longest_s: PositiveFloat = Field(
        900.0, description="The longest wait after such a conflict."
    )
    quiet_s: PositiveFloat = Field(
        0.4,
        description="How long a change of a job's details may wait to be published together with"
        " others.",
    )
    quiet_new_s: PositiveFloat = Field(
        2.0, description="The same for the wait of a new job, which its submitter knows already."
    )

    job_timer_poll_s: PositiveFloat = Field(1.0, description="How often due timers are handled.")
    job_timer_batch: PositiveInt = Field(200, description="The most due jobs in one transaction.")
    timer_postpone_s: PositiveFloat = Field(
        60.0, description="The delay of a due job whose decision fails."
    )
    count_jobs_every_s: PositiveFloat = Field(
        30.0, description="How often open jobs, and their GPUs by user, are counted for metrics."
    )
    metrics_users: PositiveInt = Field(
        100,
        description="The most users with metrics of their own, those with the most GPUs; others"
        " are summed up.",
    )
    clean_jobs_every_s: PositiveFloat = Field(600.0, description="How often old jobs are deleted.")
    clean_jobs: PositiveInt = Field(1000, description="The most jobs deleted at once.")
    kept_days: PositiveInt = Field(
        9, description="How long ended jobs are kept; longer than the exchange keeps subjects."
    )
    lost_messages_days: PositiveInt = Field(
        8, description="How long the end of a pod is republished to an agent that does not answer."
    )

    @field_validator("secrets_keys")
    @classmethod
    def _are_keys(cls, keys: SecretStr) -> SecretStr:
        for key in keys_in(keys):
            public_key_of(key)
        return keys

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Raises ValueError where two settings contradict each other."""
        for less, more in _IN_ORDER:
            if getattr(self, less) > getattr(self, more):
                raise ValueError(
                    f"MUSTER_{less.upper()} ({getattr(self, less)}) must not be above"
                    f" MUSTER_{more.upper()} ({getattr(self, more)})"
                )
        return self

    def policy(self) -> Policy:
        """The constants of the decisions."""
        return Policy(
            stop_grace=timedelta(seconds=self.stop_grace_s),
            preempt_grace_longest=timedelta(seconds=self.preempt_grace_longest_s),
            lost_grace=timedelta(seconds=self.lost_grace_s),
            backoff_first=timedelta(seconds=self.retry_backoff_first_s),
            backoff_longest=timedelta(seconds=self.retry_backoff_longest_s),
            backoff_reset=timedelta(seconds=self.retry_backoff_reset_s),
            conflict_shortest=timedelta(seconds=self.conflict_shortest_s),
            conflict_longest=timedelta(seconds=self.conflict_longest_s),
            quiet=timedelta(seconds=self.quiet_s),
            quiet_new=timedelta(seconds=self.quiet_new_s),
            start_longest=timedelta(days=self.closed_subjects_days),
            resync=timedelta(seconds=self.resync_s),
        )
