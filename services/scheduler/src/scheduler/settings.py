"""Settings of the Scheduler, all from the environment (``MUSTER_…``). Units are in the names."""

from pathlib import Path
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

from scheduler.domain.core.config import Policy
from scheduler.domain.leases import LeasePolicy
from scheduler.domain.rules import Rules
from scheduler.domain.run_times import Bounds

_IN_ORDER = (
    ("leader_renew_s", "leader_expiry_s"),
    ("leader_renew_s", "changes_kept_s"),
    ("probe_s", "probe_window_s"),
    ("probe_window_s", "leader_cut_off_s"),
    ("probe_window_s", "lease_timeout_s"),
    ("watch_s", "stall_s"),
    ("watch_s", "lease_timeout_s"),
)
"""A leadership is renewed before it expires, a standby looks before what it has to read is dropped,
a probe is sent before the last one is missed, who misses it is not replaced at once, a bus that is
away is known before nodes are lost for it, and leases are judged before the judge counts as away.
"""


class SchedulerSettings(DatabaseSettings):
    """Cycles, leases, leadership, the record, and the bounds of answers."""

    http_port: NonNegativeInt = Field(
        8082, description="Port of the API, health and metrics; 0: any free."
    )

    cycle_interval_s: NonNegativeFloat = Field(
        0.005,
        description="Least time between the starts of two cycles; changes in between are batched.",
    )
    cycle_poll_s: PositiveFloat = Field(1.0, description="Longest time between two cycles.")
    cycle_messages: PositiveInt = Field(
        500, description="Messages on gangs applied in one cycle, at most."
    )
    cycle_gangs: PositiveInt = Field(
        500,
        description="Placement attempts, and published wait reasons, in one transaction, each at"
        " most.",
    )
    cycle_part_s: PositiveFloat = Field(
        0.025, description="Longest part of a cycle in one transaction; the next one continues it."
    )
    audit_s: PositiveFloat = Field(
        60.0, description="Interval of the audit, which compares accounting with all placements."
    )
    audit_part_s: PositiveFloat = Field(
        0.005, description="Longest part of an audit after one cycle; later cycles continue it."
    )
    load_gangs: PositiveInt = Field(
        1000, description="Gangs, or pods, loaded by one query at a takeover."
    )
    catch_up_s: NonNegativeFloat = Field(
        5.0, description="Time that a new leader waits for earlier node reports."
    )
    collect_s: PositiveFloat = Field(
        10.0, description="Interval of Python's garbage collection, preferably while idle."
    )

    cluster_file: Path | None = Field(
        None,
        description="File with cells, virtual clusters and policy; none: derived from the nodes.",
    )
    cluster_file_poll_s: PositiveFloat = Field(
        3.0, description="Interval of checking the cluster file for changes."
    )
    remake_share: PositiveFloat = Field(
        0.1,
        le=1,
        description="Share of time, 0 to 1, for rebuilding the cluster as nodes come and go.",
    )
    preemption_grace_s: NonNegativeFloat = Field(
        30.0, description="Grace of a preempted gang, without a cluster file."
    )
    lazy_preemption: bool = Field(
        False, description="Downgrade before preemption by default, without a cluster file."
    )
    overdue_s: PositiveFloat = Field(
        60.0,
        description="Time to wait for an ended pod to free its resources before others are used.",
    )
    settle_s: NonNegativeFloat = Field(
        30.0, description="Time without cluster growth before a gang can be refused."
    )
    defer_again_s: PositiveFloat = Field(
        60.0, description="Least time between two reasons of one gang that differ only in numbers."
    )
    defer_again_gangs: PositiveInt = Field(
        50, description="Gangs with such a changed reason published in one cycle, at most."
    )
    foreign_port_s: PositiveFloat = Field(
        600.0, description="Time that a port used by a foreign process is avoided."
    )
    port_rest_s: NonNegativeFloat = Field(
        60.0, description="Time before a freed port is used again while other ports are free."
    )

    lease_timeout_s: PositiveFloat = Field(60.0, description="Silence after which a node is lost.")
    many_silent: PositiveFloat = Field(
        0.2,
        description="Share of nodes, 0 to 1: if more fall silent at once, none is declared lost.",
    )
    probe_s: PositiveFloat = Field(2.0, description="Interval of the probe over the bus.")
    probe_window_s: PositiveFloat = Field(
        8.0,
        description="Time without the probe after which the bus counts as cut off.",
    )
    stall_s: PositiveFloat = Field(
        5.0, description="Pause of this process after which all leases start again."
    )
    watch_s: PositiveFloat = Field(1.0, description="Interval of checking the leases.")
    lost_repeat_s: PositiveFloat = Field(
        60.0, description="Interval of repeating node-lost and node-name-clashed."
    )
    clash_quiet_s: PositiveFloat = Field(
        180.0,
        description="Silence of one of two machines with the same node name after which the clash"
        " ends; agents report every 60 s.",
    )
    lost_kept_days: PositiveFloat = Field(
        8.0, description="Days after which a lost node is removed."
    )
    returned_repeat_s: PositiveFloat = Field(
        5.0, description="Interval of repeating node-returned until the node names its lease."
    )

    leader_renew_s: PositiveFloat = Field(
        0.5, description="Interval of renewing leadership, and of checking it on a standby."
    )
    leader_expiry_s: PositiveFloat = Field(
        1.5, description="Length of the leadership lease after a renewal."
    )
    leader_take_s: PositiveFloat = Field(
        2.0, description="Time after expiry before a standby takes leadership."
    )
    leader_cut_off_s: PositiveFloat = Field(
        20.0,
        description="Time cut off from the bus before a connected standby replaces the leader.",
    )
    changes_kept_s: PositiveFloat = Field(
        60.0,
        description="Retention of changes for standbys; a slower standby reads everything again.",
    )
    deciding_timeout_s: PositiveFloat = Field(
        3.0, description="Idle time after which the database ends a deciding transaction."
    )
    run_time_runs: PositiveInt = Field(
        16, description="Ended gangs of a kind from which its run time is learnt, newest first."
    )
    run_time_keys: PositiveInt = Field(
        10_000,
        description="Kinds of gangs (user, name pattern, shape), at most; the oldest are dropped.",
    )
    run_time_user_keys: PositiveInt = Field(500, description="Kinds of gangs of one user, at most.")
    run_time_days: PositiveFloat = Field(
        90.0, description="Days without an ended gang after which a kind is forgotten."
    )
    record_days: PositiveFloat = Field(14.0, description="Retention of the record, in days.")
    record_mb: PositiveInt = Field(
        10_000, description="Size of the record, at most; the oldest part is dropped."
    )
    record_snapshot_h: PositiveFloat = Field(
        6.0, description="Hours between two snapshots in the record while cycles are recorded."
    )
    record_wait_s: NonNegativeFloat = Field(
        1.0, description="Longest delay before a cycle without decisions is recorded."
    )
    record_wait_cycles: PositiveInt = Field(
        1000, description="Cycles without decisions that are recorded at once, without waiting."
    )
    record_clean_s: PositiveFloat = Field(
        60.0, description="Interval of removing old parts of the record."
    )
    record_clean_cycles: PositiveInt = Field(
        5000, description="Recorded cycles removed in one transaction."
    )
    record_exports: PositiveInt = Field(2, description="Concurrent exports of the record, at most.")
    record_stall_s: PositiveFloat = Field(
        60.0, description="Time without progress after which an export is cancelled."
    )

    whole_exports: PositiveInt = Field(
        1,
        description="Concurrent exports of the present cluster, at most; decisions wait for them.",
    )
    configuration_checks: PositiveInt = Field(
        1, description="Concurrent checks of configurations, at most."
    )
    configuration_bytes: PositiveInt = Field(
        512 * 1024, description="Size of a configuration to check, at most."
    )
    what_if_days: PositiveFloat = Field(
        7.0, description="Days of the record that a what-if comparison replays."
    )
    what_if_s: PositiveFloat = Field(
        300.0, description="Time limit of a what-if comparison; the answer states what is left out."
    )
    what_if_mb: PositiveInt = Field(
        4096, description="Memory of the process of a what-if comparison, at most."
    )
    what_if_answer_s: PositiveFloat = Field(
        10.0, description="Longest wait for a what-if answer before it is reported as running."
    )
    what_if_kept_s: PositiveFloat = Field(
        900.0, description="Time that a what-if answer is cached."
    )
    question_wait_s: PositiveFloat = Field(
        4.0, description="Longest wait of a request while the Scheduler decides; then 503."
    )
    queue_answer: PositiveInt = Field(1000, description="Gangs in one answer, at most.")
    cells_answer: PositiveInt = Field(1000, description="Cells in one answer, at most.")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Raises ValueError where two settings would stop each other's work, without a word."""
        for less, more in _IN_ORDER:
            if getattr(self, less) >= getattr(self, more):
                raise ValueError(
                    f"MUSTER_{less.upper()} ({getattr(self, less)}) must be below"
                    f" MUSTER_{more.upper()} ({getattr(self, more)})"
                )
        return self

    @property
    def lead_s(self) -> float:
        """Who has not renewed its lead for so long may have been followed by another."""
        return self.leader_expiry_s + self.leader_take_s

    def policy(self) -> Policy:
        """How the core decides where no file says it."""
        return Policy(is_lazy=self.lazy_preemption, grace_s=self.preemption_grace_s)

    def rules(self) -> Rules:
        """What is free, what is said, and when."""
        return Rules(
            cycle_gangs=self.cycle_gangs,
            settle_s=self.settle_s,
            defer_again_s=self.defer_again_s,
            defer_again_gangs=self.defer_again_gangs,
            foreign_port_s=self.foreign_port_s,
            port_rest_s=self.port_rest_s,
            overdue_s=self.overdue_s,
            run_times=Bounds(
                self.run_time_runs,
                self.run_time_keys,
                self.run_time_user_keys,
                self.run_time_days * 86_400.0,
            ),
        )

    def lease_policy(self) -> LeasePolicy:
        """When a silence is believed."""
        return LeasePolicy(
            lease_s=self.lease_timeout_s,
            probe_window_s=self.probe_window_s,
            stall_s=self.stall_s,
            many=self.many_silent,
        )
