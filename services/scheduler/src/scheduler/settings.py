"""Settings of the Scheduler, all from the environment (``MUSTER_…``). Units are in the names."""

from pathlib import Path
from typing import Self

from muster.settings import DatabaseSettings, ReadByRestSettings
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
    ("probe_window_s", "leader_deaf_s"),
    ("probe_window_s", "lease_timeout_s"),
    ("watch_s", "stall_s"),
    ("watch_s", "lease_timeout_s"),
)
"""A leadership is renewed before it expires, a standby looks before what it has to read is dropped,
a probe is sent before the last one is missed, who misses it is not replaced at once, a bus that is
away is known before nodes are lost for it, and leases are judged before the judge counts as away.
"""


class SchedulerSettings(DatabaseSettings, ReadByRestSettings):
    """When cycles run, when a node is lost, who leads."""

    http_port: NonNegativeInt = Field(8082, description="Queue, reasons, health; 0: any.")

    cycle_interval_s: NonNegativeFloat = Field(
        0.005, description="Cycles begin at least this far apart; what comes meanwhile is batched."
    )
    cycle_poll_s: PositiveFloat = Field(1.0, description="A cycle looks this often, unasked.")
    cycle_words: PositiveInt = Field(500, description="Gangs' words taken into one cycle.")
    cycle_gangs: PositiveInt = Field(
        500,
        description="Ways in which places for gangs are sought, and gangs told why they wait, each,"
        " in one transaction.",
    )
    cycle_part_s: PositiveFloat = Field(
        0.025, description="After so long in one transaction the rest of a cycle is the next one's."
    )
    audit_s: PositiveFloat = Field(
        60.0, description="So often the books are compared with the placements of all gangs."
    )
    audit_part_s: PositiveFloat = Field(
        0.005, description="So long of that is done after a cycle; the rest after the next ones."
    )
    load_gangs: PositiveInt = Field(
        1000, description="Gangs, or pods, loaded at once at a take-over."
    )
    catch_up_s: NonNegativeFloat = Field(
        5.0, description="A new leader waits so long for what nodes reported before it."
    )
    collect_s: PositiveFloat = Field(
        10.0, description="Python's garbage is collected this often, best while nothing is to do."
    )

    cluster_file: Path | None = Field(
        None, description="Cells, virtual clusters and policy; none: the nodes make the cluster."
    )
    cluster_file_poll_s: PositiveFloat = Field(3.0, description="It is looked at this often.")
    remake_share: PositiveFloat = Field(
        0.1, le=1, description="Of the time: for making the cluster anew as nodes come and go."
    )
    preemption_grace_s: NonNegativeFloat = Field(
        30.0, description="Without a file: a preempted gang is to be gone so much later."
    )
    lazy_preemption: bool = Field(
        False, description="Without a file: jobs that don't say lose their cells before they end."
    )
    overdue_s: PositiveFloat = Field(
        60.0, description="What an ended pod holds is waited for so long, then worked around."
    )
    settle_s: NonNegativeFloat = Field(
        30.0, description="Nothing is refused before the cluster has not grown for so long."
    )
    defer_again_s: PositiveFloat = Field(
        60.0, description="A wait whose numbers changed is told again this often at the most."
    )
    defer_again_gangs: PositiveInt = Field(50, description="So many of them at a time.")
    foreign_port_s: PositiveFloat = Field(600.0, description="A stranger's port is avoided.")
    port_rest_s: NonNegativeFloat = Field(60.0, description="A freed port rests if others do.")

    lease_timeout_s: PositiveFloat = Field(60.0, description="A node silent for so long is lost.")
    many_silent: PositiveFloat = Field(
        0.2, description="Of the nodes: when more fall silent at once, none is declared lost."
    )
    probe_s: PositiveFloat = Field(2.0, description="How often the probe is sent round the bus.")
    probe_window_s: PositiveFloat = Field(
        8.0, description="A probe not heard for so long does not come round: silence is no sign."
    )
    stall_s: PositiveFloat = Field(
        5.0, description="A process that did not judge for so long was away: leases begin anew."
    )
    watch_s: PositiveFloat = Field(1.0, description="How often leases are judged.")
    lost_repeat_s: PositiveFloat = Field(
        60.0, description="node-lost and node-name-clashed are repeated."
    )
    clash_quiet_s: PositiveFloat = Field(
        180.0,
        description="Two machines share a node name until one has not reported for so long;"
        " agents report every 60 s.",
    )
    lost_kept_days: PositiveFloat = Field(
        8.0, description="A node that was lost for so long is removed."
    )
    returned_repeat_s: PositiveFloat = Field(
        5.0, description="node-returned is repeated until the node names its lease."
    )

    leader_renew_s: PositiveFloat = Field(
        0.5, description="Leadership is renewed this often; who stands by looks as often."
    )
    leader_expiry_s: PositiveFloat = Field(1.5, description="It lasts so long after a renewal.")
    leader_take_s: PositiveFloat = Field(2.0, description="So long after that it may be taken.")
    leader_deaf_s: PositiveFloat = Field(
        20.0, description="Who leads without the bus for so long is replaced by who has it as long."
    )
    changes_kept_s: PositiveFloat = Field(
        60.0, description="Who stands by and has not looked for so long reads all anew."
    )
    deciding_timeout_s: PositiveFloat = Field(
        3.0, description="A deciding transaction that idles for so long is ended by the database."
    )
    run_time_runs: PositiveInt = Field(
        16, description="Run times are learnt from so many ended gangs of a kind, the newest."
    )
    run_time_keys: PositiveInt = Field(
        10_000, description="Kinds of gangs (user, pattern of names, shape); the oldest go first."
    )
    run_time_user_keys: PositiveInt = Field(500, description="Of one user, at the most.")
    run_time_days: PositiveFloat = Field(
        90.0, description="A kind of which none ended for so long is forgotten."
    )
    record_days: PositiveFloat = Field(14.0, description="The record goes back for so long.")
    record_mb: PositiveInt = Field(10_000, description="A longer record loses its oldest part.")
    record_snapshot_h: PositiveFloat = Field(
        6.0, description="Something was recorded, and so long no snapshot taken: one is."
    )
    record_wait_s: NonNegativeFloat = Field(
        1.0, description="What decided nothing waits so long for a transaction to be recorded in."
    )
    record_wait_cycles: PositiveInt = Field(1000, description="So many such cycles do not wait.")
    record_clean_s: PositiveFloat = Field(60.0, description="What is too old is looked for.")
    record_clean_cycles: PositiveInt = Field(5000, description="Removed in one transaction.")
    record_exports: PositiveInt = Field(2, description="Exports at the same time, at the most.")
    record_stall_s: PositiveFloat = Field(
        60.0, description="An export of which nothing is taken for so long is cut off."
    )

    whole_exports: PositiveInt = Field(
        1, description="Of the cluster of now, made at the same time, at the most: decisions wait."
    )
    configuration_checks: PositiveInt = Field(
        1, description="Configurations checked at the same time, at the most."
    )
    configuration_bytes: PositiveInt = Field(
        512 * 1024, description="Of a configuration that is to be checked."
    )
    what_if_days: PositiveFloat = Field(
        7.0, description="What a change would have done is asked of so many days of the record."
    )
    what_if_s: PositiveFloat = Field(
        300.0, description="So long it is looked at; what is not is left out, and that is told."
    )
    what_if_mb: PositiveInt = Field(4096, description="Memory of the process that does it.")
    what_if_answer_s: PositiveFloat = Field(
        10.0, description="Who asks waits so long at once, and is told then that it goes on."
    )
    what_if_kept_s: PositiveFloat = Field(
        900.0, description="Who asks the same again within so long gets the same answer."
    )
    question_wait_s: PositiveFloat = Field(
        4.0, description="A question waits so long while the Scheduler decides; then it gets 503."
    )
    queue_answer: PositiveInt = Field(1000, description="Gangs in one answer, at the most.")
    cells_answer: PositiveInt = Field(1000, description="Cells in one answer, at the most.")

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
