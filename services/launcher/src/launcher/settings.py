"""Settings of the Launcher, from the environment (``MUSTER_…``). Units are in the names."""

from datetime import timedelta
from typing import Self

from muster.settings import DatabaseSettings
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from launcher.domain.model import Policy

_IN_ORDER = (
    ("retry_backoff_first_s", "retry_backoff_longest_s"),
    ("conflict_shortest_s", "conflict_longest_s"),
    ("closed_subjects_days", "kept_days"),
)
"""A job that is known answers for its gangs and pods as long as their subjects are kept."""


class LauncherSettings(DatabaseSettings):
    """How jobs are stopped and retried, and how often the Launcher looks at its clock."""

    http_port: NonNegativeInt = Field(8081, description="Health and metrics; 0: any free.")

    stop_grace_s: NonNegativeFloat = Field(
        30.0, description="From asking a task to stop until it is killed."
    )
    preempt_grace_longest_s: NonNegativeFloat = Field(
        3600.0, description="A preempted task has until the Scheduler's deadline, but not longer."
    )
    lost_grace_s: NonNegativeFloat = Field(
        5.0, description="From asking to killing, for pods that come back with a lost node."
    )
    retry_backoff_first_s: PositiveFloat = Field(
        1.0, description="The wait before a retry that costs no count; the next are doubled."
    )
    retry_backoff_longest_s: PositiveFloat = 300.0
    retry_backoff_reset_s: PositiveFloat = Field(
        600.0, description="After an attempt that ran for so long the waits start anew."
    )
    conflict_shortest_s: PositiveFloat = Field(
        60.0, description="The wait after a conflict over resources is drawn from here ..."
    )
    conflict_longest_s: PositiveFloat = Field(900.0, description="... up to here.")
    quiet_s: PositiveFloat = Field(
        0.4, description="So long may a job's details wait to be told together."
    )
    quiet_new_s: PositiveFloat = Field(
        2.0, description="So long may wait what the submitter knows: that a new job waits."
    )

    job_timer_poll_s: PositiveFloat = Field(1.0, description="How often due times are looked at.")
    job_timer_batch: PositiveInt = Field(200, description="Due jobs handled in one transaction.")
    timer_postpone_s: PositiveFloat = Field(
        60.0, description="So much later is a due job looked at that can't be decided."
    )
    clean_jobs_every_s: PositiveFloat = 600.0
    clean_jobs: PositiveInt = Field(1000, description="Old jobs deleted at once.")
    kept_days: PositiveInt = Field(
        9, description="Ended jobs are kept; longer than the exchange keeps its subjects."
    )
    lost_messages_days: PositiveInt = Field(
        8, description="So long a pod's agent is told of its end that does not answer."
    )

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
