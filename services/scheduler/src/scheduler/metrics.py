"""Every metric of the Scheduler."""

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class SchedulerMetrics:
    """What was decided, what waits, which nodes are there, who leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cycle_seconds = Histogram(
            "muster_scheduler_cycle_seconds",
            "Time of one cycle with its transaction.",
            buckets=SECONDS,
            registry=registry,
        )
        self.core_seconds = Histogram(
            "muster_scheduler_core_seconds",
            "Time of the decisions of one cycle alone.",
            buckets=(0.0001, 0.0002, 0.0005, *SECONDS),
            registry=registry,
        )
        self.decisions = Counter(
            "muster_scheduler_decisions",
            "Gangs decided about, by what was decided.",
            ["decision"],
            registry=registry,
        )
        self.waiting = Gauge(
            "muster_scheduler_waiting_gangs", "Gangs that wait.", registry=registry
        )
        self.gangs = Gauge("muster_scheduler_gangs", "Gangs that are not over.", registry=registry)
        self.placements = Gauge(
            "muster_scheduler_placements",
            "Placements whose node is not free yet.",
            registry=registry,
        )
        self.nodes = Gauge(
            "muster_scheduler_nodes", "Nodes, by state.", ["state"], registry=registry
        )
        self.gpus = Gauge(
            "muster_scheduler_gpus",
            "GPUs of nodes that take pods: all that are healthy, and those that are free.",
            ["state"],
            registry=registry,
        )
        self.lost = Counter(
            "muster_scheduler_nodes_lost", "Nodes that were declared lost.", registry=registry
        )
        self.withheld = Gauge(
            "muster_scheduler_nodes_withheld",
            "Silent nodes that are not declared lost, because too many fell silent at once.",
            registry=registry,
        )
        self.probe_round = Gauge(
            "muster_scheduler_probe_round",
            "1 while the leader's probe comes round on every partition.",
            registry=registry,
        )
        self.is_leader = Gauge(
            "muster_scheduler_is_leader", "1 where this process decides.", registry=registry
        )
        self.epoch = Gauge(
            "muster_scheduler_epoch", "The epoch of this process's last lead.", registry=registry
        )
        self.rebuilds = Counter(
            "muster_scheduler_rebuilds",
            "Times that memory was rebuilt from the database.",
            registry=registry,
        )
        self.rebuild_seconds = Histogram(
            "muster_scheduler_rebuild_seconds",
            "Time of one rebuild.",
            buckets=SECONDS,
            registry=registry,
        )
