"""Settings of the Scheduler, all from the environment (``MUSTER_…``). Units are in the names."""

from pathlib import Path
from typing import Self

from muster.settings import DatabaseSettings, Port, ReadByRestSettings
from pydantic import (
    Field,
    NonNegativeFloat,
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
"""Pairs of settings, the lower one first. A lease is renewed before it expires. A standby looks
before changes are dropped. A probe is sent before the last one counts as missing. A leader that
misses one is not replaced at once. A missing bus is noticed before nodes are lost for it. Leases
are checked before the check counts as stalled.
"""


class SchedulerSettings(DatabaseSettings, ReadByRestSettings):
    """Settings of cycles, node leases and leadership."""

    http_port: Port = Field(
        8082,
        description="The port of its HTTP interface (queue, reasons, health, metrics); 0: any free"
        " port.",
    )

    cycle_interval_s: NonNegativeFloat = Field(
        0.005,
        description="The least time between the starts of two cycles. Changes meanwhile form one"
        " batch.",
    )
    cycle_poll_s: PositiveFloat = Field(1.0, description="The longest time without a cycle.")
    cycle_messages: PositiveInt = Field(
        500, description="The most messages on gangs that one cycle takes."
    )
    cycle_gangs: PositiveInt = Field(
        500,
        description="The most searches for places, and the most published wait reasons, in one"
        " transaction.",
    )
    cycle_part_s: PositiveFloat = Field(
        0.025,
        description="The time in one transaction after which the rest of a cycle moves to the next"
        " one.",
    )
    audit_s: PositiveFloat = Field(
        60.0, description="How often the self-audit compares accounting and placements."
    )
    audit_part_s: PositiveFloat = Field(
        0.005, description="The audit's time after one cycle; the rest follows after later cycles."
    )
    load_gangs: PositiveInt = Field(
        1000, description="Gangs, or pods, that a take-over loads at once."
    )
    catch_up_s: NonNegativeFloat = Field(
        5.0, description="How long a new leader waits for earlier node reports."
    )
    collect_s: PositiveFloat = Field(
        10.0, description="How often Python collects garbage, preferably when idle."
    )

    cluster_file: Path | None = Field(
        None,
        description="The file with cells, virtual clusters and policy. Without it the nodes make"
        " the cluster.",
    )
    cluster_file_poll_s: PositiveFloat = Field(
        3.0, description="How often the cluster file is checked for a change."
    )
    remake_share: PositiveFloat = Field(
        0.1,
        le=1,
        description="The most of the time that is spent on rebuilding the cluster as nodes join and"
        " leave.",
    )
    preemption_grace_s: NonNegativeFloat = Field(
        30.0, description="Without a cluster file: the time from a preemption to the latest end."
    )
    lazy_preemption: bool = Field(
        False,
        description="Without a cluster file: gangs are downgraded before they are preempted, unless"
        " the job states otherwise.",
    )
    overdue_s: PositiveFloat = Field(
        60.0,
        description="How long decisions wait for an ended pod's resources before they use other"
        " nodes.",
    )
    settle_s: NonNegativeFloat = Field(
        30.0, description="The time without new nodes after which a gang may be refused."
    )
    defer_again_s: PositiveFloat = Field(
        60.0, description="The least time between two messages on a wait whose numbers changed."
    )
    defer_again_gangs: PositiveInt = Field(
        50, description="The most gangs at a time in such messages."
    )
    foreign_port_s: PositiveFloat = Field(
        600.0, description="How long a port is avoided that another process held."
    )
    port_rest_s: NonNegativeFloat = Field(
        60.0, description="How long a freed port is avoided while others are free."
    )

    lease_timeout_s: PositiveFloat = Field(
        60.0, description="The silence after which a node is lost."
    )
    many_silent: PositiveFloat = Field(
        0.2, description="The share of nodes above which a simultaneous silence loses none."
    )
    probe_s: PositiveFloat = Field(
        2.0, description="How often the Scheduler sends its probe over the bus."
    )
    probe_window_s: PositiveFloat = Field(
        8.0, description="How long a probe may be missing before silence stops counting."
    )
    stall_s: PositiveFloat = Field(
        5.0, description="A pause of the lease check after which all leases start anew."
    )
    metrics_users: PositiveInt = Field(
        100,
        description="The most users with metrics of their own, those with the most GPUs; others"
        " are summed up.",
    )
    watch_s: PositiveFloat = Field(1.0, description="How often leases are checked.")
    lost_repeat_s: PositiveFloat = Field(
        60.0, description="How often node-lost and node-name-clashed are repeated."
    )
    clash_quiet_s: PositiveFloat = Field(
        180.0,
        description="How long one of two machines with the same node name must be silent to end the"
        " clash. Agents report every 60 s.",
    )
    lost_kept_days: PositiveFloat = Field(8.0, description="How long a lost node is kept.")
    returned_repeat_s: PositiveFloat = Field(
        5.0, description="How often node-returned is repeated until the node names its lease."
    )

    leader_renew_s: PositiveFloat = Field(
        0.5, description="How often the leader renews its lease, and a standby follows its changes."
    )
    leader_expiry_s: PositiveFloat = Field(1.5, description="How long a renewal is valid.")
    leader_take_s: PositiveFloat = Field(
        2.0, description="How long after expiry a standby may take leadership."
    )
    leader_cut_off_s: PositiveFloat = Field(
        20.0,
        description="How long a leader may be cut off from the bus while a standby is not. Then the"
        " standby replaces it.",
    )
    changes_kept_s: PositiveFloat = Field(
        60.0,
        description="How long changes are kept for standbys. A standby that followed none for"
        " longer reads everything again.",
    )
    deciding_timeout_s: PositiveFloat = Field(
        3.0, description="The idle time after which the database ends a deciding transaction."
    )
    run_time_runs: PositiveInt = Field(
        16, description="Run times are learnt from this many newest gangs of a kind."
    )
    run_time_keys: PositiveInt = Field(
        10_000,
        description="The most kinds of gangs (user, name pattern, shape). The oldest are dropped.",
    )
    run_time_user_keys: PositiveInt = Field(500, description="The most kinds of one user.")
    run_time_days: PositiveFloat = Field(
        90.0, description="The time without an ended gang after which a kind is forgotten."
    )
    record_days: PositiveFloat = Field(14.0, description="How long the record is kept.")
    record_mb: PositiveInt = Field(
        10_000, description="The most that the record holds; above it the oldest part is removed."
    )
    record_snapshot_h: PositiveFloat = Field(
        6.0,
        description="The longest time between two snapshots of the record, if there are changes.",
    )
    record_wait_s: NonNegativeFloat = Field(
        1.0,
        description="How long cycles without decisions wait for a transaction that records them.",
    )
    record_wait_cycles: PositiveInt = Field(1000, description="The most such cycles that wait.")
    record_clean_s: PositiveFloat = Field(
        60.0, description="How often old parts of the record are removed."
    )
    record_clean_cycles: PositiveInt = Field(
        5000, description="The most cycles removed in one transaction."
    )
    record_exports: PositiveInt = Field(2, description="The most exports of the record at a time.")
    record_stall_s: PositiveFloat = Field(
        60.0, description="How long an export waits for a client that reads nothing."
    )

    whole_exports: PositiveInt = Field(
        1,
        description="The most exports of the present cluster at a time; decisions wait meanwhile.",
    )
    configuration_checks: PositiveInt = Field(
        1, description="The most configuration checks at a time."
    )
    configuration_bytes: PositiveInt = Field(
        512 * 1024, description="The size limit of a configuration to check."
    )
    what_if_days: PositiveFloat = Field(
        7.0, description="How many days of the record a what-if covers."
    )
    what_if_s: PositiveFloat = Field(
        300.0,
        description="The time limit of a what-if. At the limit it leaves out the newest part, and"
        " its answer states that.",
    )
    what_if_mb: PositiveInt = Field(4096, description="The memory limit of a what-if's process.")
    what_if_answer_s: PositiveFloat = Field(
        10.0, description="How long a request waits for a what-if before it gets `running`."
    )
    what_if_kept_s: PositiveFloat = Field(
        900.0, description="How long a what-if's answer is kept for the same question."
    )
    question_wait_s: PositiveFloat = Field(
        4.0, description="How long a question waits for a decision to end; then the answer is 503."
    )
    queue_answer: PositiveInt = Field(1000, description="The most gangs in one answer.")
    cells_answer: PositiveInt = Field(1000, description="The most cells in one answer.")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Raises ValueError if two settings contradict each other."""
        for less, more in _IN_ORDER:
            if getattr(self, less) >= getattr(self, more):
                raise ValueError(
                    f"MUSTER_{less.upper()} ({getattr(self, less)}) must be below"
                    f" MUSTER_{more.upper()} ({getattr(self, more)})"
                )
        return self

    @property
    def lead_s(self) -> float:
        """The time without a renewal after which another process may lead."""
        return self.leader_expiry_s + self.leader_take_s

    def policy(self) -> Policy:
        """The core's policy if there is no cluster file."""
        return Policy(is_lazy=self.lazy_preemption, grace_s=self.preemption_grace_s)

    def rules(self) -> Rules:
        """The core's rules: when resources are free, and when reasons are published."""
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
        """When a silent node counts as lost."""
        return LeasePolicy(
            lease_s=self.lease_timeout_s,
            probe_window_s=self.probe_window_s,
            stall_s=self.stall_s,
            many=self.many_silent,
        )
