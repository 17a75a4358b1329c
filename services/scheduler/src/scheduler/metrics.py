"""Every metric of the Scheduler."""

from collections.abc import Iterable, Mapping

from muster.bounded import ByUser
from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scheduler.domain.core.fragmentation import Pieces, share
from scheduler.domain.core.interface import QuotaState
from scheduler.domain.run_times import Run

NAME = "muster_scheduler_"

WHAT_IF_S = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)

RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 10.0)


class SchedulerMetrics:
    """Decisions, waiting gangs, nodes, leadership, the record and run times."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._add_decisions()
        self._add_gangs_and_nodes()
        self._add_leading()
        self._add_record()
        self._add_run_times()
        self._add_audit()
        self._add_what_ifs()

    def order_failed(self, policy: str) -> None:
        """A site's own order policy raised an exception or returned nothing."""
        self._order_failures.labels(policy).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(NAME + name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(NAME + name, text, labels, registry=self._registry)

    def _seconds(self, name: str, text: str, *finer: float) -> Histogram:
        buckets = (*finer, *SECONDS)
        return Histogram(NAME + name, text, buckets=buckets, registry=self._registry)

    def _add_decisions(self) -> None:
        self.cycle_seconds = self._seconds(
            "cycle_seconds", "Seconds of one cycle, or part of one, with its transaction."
        )
        self.core_seconds = self._seconds(
            "core_seconds",
            "Seconds of the decisions of one cycle, or part of one, alone.",
            0.0001,
            0.0002,
            0.0005,
        )
        self.cycle_parts = self._counter(
            "cycle_parts",
            "Cycles interrupted at their bounds and continued in the next transaction.",
        )
        self.decisions = self._counter("decisions", "Decisions about gangs, by kind.", "decision")
        self.adopted = self._counter(
            "adopted_pods",
            "Pods without a placement that the Scheduler adopted from a node report.",
        )
        self._order_failures = self._counter(
            "order_failures", "Failures of a site's own order policy, by policy.", "policy"
        )
        self.configs = self._counter(
            "configurations", "Configurations of the cluster that arrived, by outcome.", "outcome"
        )
        self.config_version = self._gauge(
            "configuration_version",
            "Version of the configuration in force; 0 without one.",
        )
        self.config_behind = self._gauge(
            "configuration_behind", "1 while the newest configuration can't be applied."
        )

    def _add_gangs_and_nodes(self) -> None:
        self.preempted = self._gauge("preempted_gangs", "Preempted gangs that still hold pods.")
        self.overdue = self._gauge(
            "overdue_gangs", "Preempted gangs that still hold pods after their deadline."
        )
        self.nominated = self._gauge(
            "nominated_gangs",
            "Gangs with a nominated placement that wait for preempted gangs to end.",
        )
        self.downgraded = self._gauge(
            "downgraded_gangs", "Running gangs that have lost their cells."
        )
        self.waiting = self._gauge("waiting_gangs", "Waiting gangs.")
        self.gangs = self._gauge("gangs", "Gangs that have not ended.")
        self.placements = self._gauge("placements", "Placements that still occupy their node.")
        self.nodes = self._gauge("nodes", "Nodes, by state.", "state")
        self.gpus = self._gauge(
            "gpus",
            "GPUs of schedulable nodes, by state: healthy or free.",
            "state",
        )
        self.fragmentation = self._gauge(
            "fragmentation",
            "Share of a chain's free GPUs outside wholly free cells of this type, 0 to 1.",
            "chain",
            "cell",
        )
        self.free_cells = self._gauge(
            "free_cells", "Wholly free cells, by chain and type.", "chain", "cell"
        )
        self.virtual_clusters = self._gauge(
            "virtual_cluster_gpus",
            "GPUs of a virtual cluster: its quota, how much of it is charged or lent, what it"
            " borrows from others, and what its opportunistic gangs use.",
            "virtual_cluster",
            "state",
        )
        self.users = self._gauge(
            "user_gpus",
            "GPUs that gangs of a user hold, by whose quota they are in: own, borrowed, or none:"
            " opportunistic.",
            "virtual_cluster",
            "user",
            "held_as",
        )
        self.wanted = self._gauge(
            "waiting_gpus",
            "GPUs that waiting gangs want, by virtual cluster and published reason.",
            "virtual_cluster",
            "reason",
        )
        self.requeued = self._counter(
            "requeued_gangs",
            "Attempts that failures or drains ended. Cells are reserved for the next.",
            "virtual_cluster",
        )
        self.lost = self._counter("nodes_lost", "Nodes declared lost.")
        self.lost_journals = self._counter(
            "lost_journals", "Journals that agents lost while pods were placed on their nodes."
        )
        self.withheld = self._gauge(
            "nodes_withheld",
            "Silent nodes not declared lost, because too many fell silent at once.",
        )
        self.clashes = self._gauge(
            "node_name_clashes", "Node names with reports from two machines."
        )
        self.probe_round = self._gauge(
            "probe_round", "1 while this process's probe returns from every partition."
        )

    def note_free(self, chains: Iterable[Pieces]) -> None:
        """Set the free cells and the fragmentation of each chain."""
        for pieces in chains:
            chain = pieces.chain
            for level, whole in enumerate(pieces.whole):
                where = chain.name, chain.types[level]
                self.free_cells.labels(*where).set(pieces.cells(level))
                if level:
                    self.fragmentation.labels(*where).set(share(pieces.free, whole) or 0.0)

    def note_virtual_clusters(
        self, quotas: Mapping[str, QuotaState], wanted: Mapping[tuple[str, str], int]
    ) -> None:
        """Set the GPUs of each virtual cluster. ``wanted``: by waiting gangs, by virtual cluster
        and reason.
        """
        for name, quota in quotas.items():
            self.requeued.labels(name)  # 0 from the start, else Prometheus misses the first one
            for state, gpus in (
                ("quota", quota.owned),
                ("charged", quota.charged),
                ("opportunistic", quota.opportunistic),
                ("lent", quota.lent),
                ("borrowed", quota.borrowed),
            ):
                self.virtual_clusters.labels(name, state).set(gpus)
        self.wanted.clear()
        for (name, reason), gpus in wanted.items():
            self.wanted.labels(name, reason or "none").set(gpus)

    def note_users(self, gpus: ByUser) -> None:
        """Replace the GPUs of all users."""
        self.users.clear()
        for labels, count in gpus.items():
            self.users.labels(*labels).set(count)

    def forget_cluster(self) -> None:
        """Drop all series of chains and virtual clusters: the cluster has changed."""
        self.fragmentation.clear()
        self.free_cells.clear()
        self.virtual_clusters.clear()

    def _add_leading(self) -> None:
        self.is_leader = self._gauge("is_leader", "1 while this process is the leader.")
        self.epoch = self._gauge("epoch", "Epoch of this process's last leadership.")
        self.rebuilds = self._counter("rebuilds", "Rebuilds of memory from the database.")
        self.rebuild_seconds = self._seconds("rebuild_seconds", "Seconds of one rebuild.")
        self.is_warm = self._gauge("is_warm", "1 while this standby follows the leader.")
        self.follow_lag = self._gauge(
            "follow_lag_seconds",
            "Seconds since this standby last read the leader's committed rows; else 0.",
        )
        self.followed = self._counter("followed_gangs", "Gangs that this standby has read again.")
        self.takeover_seconds = self._seconds(
            "takeover_seconds", "Seconds from leadership to the first cycle, with warm memory."
        )

    def _add_run_times(self) -> None:
        self.run_time_keys = self._gauge(
            "run_time_keys", "Kinds of gangs (user, name pattern, shape) with learnt run times."
        )
        self.run_times_expected = Histogram(
            NAME + "run_time_by_expected",
            "Ratio of a gang's run time to its expected run time, by source of the expectation.",
            ["by"],
            buckets=RATIOS,
            registry=self._registry,
        )
        self.runs = self._counter(
            "runs", "Ended gangs with a learnt run time, by source of the expectation.", "by"
        )

    def note_runs(self, runs: Iterable[Run]) -> None:
        """Count the run times of ended gangs."""
        for run in runs:
            by = "nobody"
            if run.expected_s is not None:
                by = "history" if run.is_learnt else "user"
                self.run_times_expected.labels(by).observe(run.seconds / run.expected_s)
            self.runs.labels(by).inc()

    def _add_audit(self) -> None:
        self.audits = self._counter(
            "audits", "Audits: comparisons of the accounting with all placements."
        )
        self.drifted = self._gauge(
            "drifted_gangs", "Gangs whose accounting differs from their placements."
        )
        self.drift = self._gauge(
            "drift",
            "Difference between accounting and placements of a gang: GPUs, or cells.",
            "gang",
            "account",
        )

    def _add_what_ifs(self) -> None:
        self.what_ifs = self._counter(
            "what_ifs", "What-if comparisons on the record, by outcome.", "outcome"
        )
        self.what_if_seconds = Histogram(
            NAME + "what_if_seconds",
            "Seconds of one what-if comparison, in its own process.",
            buckets=WHAT_IF_S,
            registry=self._registry,
        )

    def _add_record(self) -> None:
        self.record_cycles = self._gauge("record_cycles", "Cycles in the record.")
        self.record_bytes = self._gauge("record_bytes", "Bytes of the record, snapshots included.")
        self.record_age = self._gauge(
            "record_age_seconds", "Age of the oldest recorded cycle, in seconds."
        )
        self.record_snapshots = self._counter(
            "record_snapshots", "Snapshots written to the record."
        )
