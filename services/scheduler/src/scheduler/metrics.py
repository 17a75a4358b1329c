"""Every metric of the Scheduler."""

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

NAME = "muster_scheduler_"


class SchedulerMetrics:
    """What was decided, what waits, which nodes are there, who leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(NAME + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(NAME + name, text, labels, registry=registry)

        def seconds(name: str, text: str, *finer: float) -> Histogram:
            return Histogram(NAME + name, text, buckets=(*finer, *SECONDS), registry=registry)

        self.cycle_seconds = seconds("cycle_seconds", "Time of one cycle with its transaction.")
        self.core_seconds = seconds(
            "core_seconds", "Time of the decisions of one cycle alone.", 0.0001, 0.0002, 0.0005
        )
        self.cycle_bound = gauge(
            "cycle_bound", "Gangs that one cycle may decide about: fewer where cycles take long."
        )
        self.decisions = counter(
            "decisions", "Gangs decided about, by what was decided.", "decision"
        )
        self.configs = counter(
            "configurations", "Configurations of the cluster, by what became of them.", "outcome"
        )
        self.leaving = gauge("leaving_gangs", "Gangs that were told to leave and hold pods still.")
        self.overdue = gauge(
            "overdue_gangs", "Those of them whose time is over: the Launcher does not stop them."
        )
        self.reservations = gauge("reservations", "Gangs that wait for others to leave.")
        self.downgraded = gauge("downgraded_gangs", "Gangs that run without their cells.")
        self.waiting = gauge("waiting_gangs", "Gangs that wait.")
        self.gangs = gauge("gangs", "Gangs that are not over.")
        self.placements = gauge("placements", "Placements whose node is not free yet.")
        self.nodes = gauge("nodes", "Nodes, by state.", "state")
        self.gpus = gauge(
            "gpus",
            "GPUs of nodes that take pods: all that are healthy, and those that are free.",
            "state",
        )
        self.lost = counter("nodes_lost", "Nodes that were declared lost.")
        self.withheld = gauge(
            "nodes_withheld",
            "Silent nodes that are not declared lost, because too many fell silent at once.",
        )
        self.probe_round = gauge(
            "probe_round", "1 while the leader's probe comes round on every partition."
        )
        self.is_leader = gauge("is_leader", "1 where this process decides.")
        self.epoch = gauge("epoch", "The epoch of this process's last lead.")
        self.record_cycles = gauge("record_cycles", "Cycles that the record has.")
        self.record_bytes = gauge("record_bytes", "Bytes of the record, snapshots included.")
        self.record_age = gauge("record_age_seconds", "For how long back there is a record.")
        self.record_snapshots = counter("record_snapshots", "Snapshots written to the record.")
        self.rebuilds = counter("rebuilds", "Times that memory was rebuilt from the database.")
        self.rebuild_seconds = seconds("rebuild_seconds", "Time of one rebuild.")
        self.is_warm = gauge("is_warm", "1 where this process stands by and follows the leader.")
        self.follow_lag = gauge(
            "follow_lag_seconds", "How long ago it has read what the leader committed; else 0."
        )
        self.followed = counter("followed_gangs", "Gangs read anew while standing by.")
        self.takeover_seconds = seconds(
            "takeover_seconds", "Time from the lead to the first cycle, where memory was there."
        )
