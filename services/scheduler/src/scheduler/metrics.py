"""Every metric of the Scheduler."""

from collections.abc import Iterable

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scheduler.domain.core.fragmentation import Pieces, share
from scheduler.domain.core.loans import Loans
from scheduler.domain.run_times import Run

NAME = "muster_scheduler_"

WHAT_IF_S = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)

RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 10.0)


class SchedulerMetrics:
    """What was decided, what waits, which nodes are there, who leads."""

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
        """A site's own policy of the order had no answer."""
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
            "cycle_seconds", "Time of one cycle, or part of one, with its transaction."
        )
        self.core_seconds = self._seconds(
            "core_seconds", "Time of the decisions of it alone.", 0.0001, 0.0002, 0.0005
        )
        self.cycle_parts = self._counter(
            "cycle_parts", "Times that a cycle was left for its bounds, to be gone on with."
        )
        self.decisions = self._counter(
            "decisions", "Gangs decided about, by what was decided.", "decision"
        )
        self.adopted = self._counter(
            "adopted_pods", "Pods adopted where their node reports them, as they had no placement."
        )
        self._order_failures = self._counter(
            "order_failures", "Times that a site's own policy of the order had no answer.", "policy"
        )
        self.configs = self._counter(
            "configurations", "Configurations of the cluster, by what became of them.", "outcome"
        )
        self.config_version = self._gauge(
            "configuration_version",
            "Of what administrators have set, the version that holds; or 0.",
        )
        self.config_behind = self._gauge(
            "configuration_behind", "1 while the newest configuration can't be honoured."
        )

    def _add_gangs_and_nodes(self) -> None:
        self.leaving = self._gauge(
            "leaving_gangs", "Gangs that were told to leave and hold pods still."
        )
        self.overdue = self._gauge(
            "overdue_gangs", "Those of them whose time is over: the Launcher does not stop them."
        )
        self.reservations = self._gauge(
            "reservations", "Gangs that wait for others to leave their reserved places."
        )
        self.downgraded = self._gauge("downgraded_gangs", "Gangs that run without their cells.")
        self.waiting = self._gauge("waiting_gangs", "Gangs that wait.")
        self.gangs = self._gauge("gangs", "Gangs that are not over.")
        self.placements = self._gauge("placements", "Placements whose node is not free yet.")
        self.nodes = self._gauge("nodes", "Nodes, by state.", "state")
        self.gpus = self._gauge(
            "gpus",
            "GPUs of nodes that take pods: all that are healthy, and those that are free.",
            "state",
        )
        self.fragmentation = self._gauge(
            "fragmentation",
            "Share of a chain's free GPUs that are in no wholly free cell of this type.",
            "chain",
            "cell",
        )
        self.free_cells = self._gauge(
            "free_cells", "Cells that are free as a whole, by chain and type.", "chain", "cell"
        )
        self.loaned = self._gauge(
            "loaned_gpus",
            "GPUs of its quota that a virtual cluster has lent, or that it has borrowed.",
            "virtual_cluster",
            "side",
        )
        self.lost = self._counter("nodes_lost", "Nodes that were declared lost.")
        self.lost_journals = self._counter(
            "lost_journals", "Journals that agents have lost while pods were placed on their nodes."
        )
        self.withheld = self._gauge(
            "nodes_withheld",
            "Silent nodes that are not declared lost, because too many fell silent at once.",
        )
        self.clashes = self._gauge(
            "node_name_clashes", "Node names under which two machines report."
        )
        self.probe_round = self._gauge(
            "probe_round", "1 while this process's probe comes round on every partition."
        )

    def note_free(self, chains: Iterable[Pieces]) -> None:
        """What is free, and how far it is in pieces."""
        for pieces in chains:
            chain = pieces.chain
            for level, whole in enumerate(pieces.whole):
                where = chain.name, chain.types[level]
                self.free_cells.labels(*where).set(pieces.cells(level))
                if level:
                    self.fragmentation.labels(*where).set(share(pieces.free, whole) or 0.0)

    def note_loans(self, loans: Loans, virtual_clusters: Iterable[str]) -> None:
        """What they lend one another."""
        for name in virtual_clusters:
            self.loaned.labels(name, "lent").set(loans.lent_by(name))
            self.loaned.labels(name, "borrowed").set(loans.borrowed_by(name))

    def forget_free(self) -> None:
        """There may be other chains and virtual clusters from now on."""
        self.fragmentation.clear()
        self.free_cells.clear()
        self.loaned.clear()

    def _add_leading(self) -> None:
        self.is_leader = self._gauge("is_leader", "1 where this process decides.")
        self.epoch = self._gauge("epoch", "The epoch of this process's last lead.")
        self.rebuilds = self._counter(
            "rebuilds", "Times that memory was rebuilt from the database."
        )
        self.rebuild_seconds = self._seconds("rebuild_seconds", "Time of one rebuild.")
        self.is_warm = self._gauge(
            "is_warm", "1 where this process stands by and follows the leader."
        )
        self.follow_lag = self._gauge(
            "follow_lag_seconds", "How long ago it has read what the leader committed; else 0."
        )
        self.followed = self._counter("followed_gangs", "Gangs read anew while standing by.")
        self.takeover_seconds = self._seconds(
            "takeover_seconds", "Time from the lead to the first cycle, where memory was there."
        )

    def _add_run_times(self) -> None:
        self.run_time_keys = self._gauge(
            "run_time_keys", "Kinds of gangs (user, pattern of names, shape) with known run times."
        )
        self.run_times_expected = Histogram(
            NAME + "run_time_by_expected",
            "Seconds that gangs ran by seconds that they were expected to, by who expected it.",
            ["by"],
            buckets=RATIOS,
            registry=self._registry,
        )
        self.runs = self._counter(
            "runs", "Ended gangs from which run times were learnt, by who expected one.", "by"
        )

    def note_runs(self, runs: Iterable[Run]) -> None:
        """These gangs have ended."""
        for run in runs:
            by = "nobody"
            if run.expected_s is not None:
                by = "history" if run.is_learnt else "user"
                self.run_times_expected.labels(by).observe(run.seconds / run.expected_s)
            self.runs.labels(by).inc()

    def _add_audit(self) -> None:
        self.audits = self._counter(
            "audits", "Times that the books were compared with all placements."
        )
        self.drifted = self._gauge(
            "drifted_gangs", "Gangs that the books have other GPUs or quota of than placements."
        )
        self.drift = self._gauge(
            "drift",
            "By how much the books of a gang are wrong, of the first of them.",
            "gang",
            "book",
        )

    def _add_what_ifs(self) -> None:
        self.what_ifs = self._counter(
            "what_ifs", "Changes compared on what was recorded, by what came of it.", "outcome"
        )
        self.what_if_seconds = Histogram(
            NAME + "what_if_seconds",
            "Time of one comparison of a change, in its own process.",
            buckets=WHAT_IF_S,
            registry=self._registry,
        )

    def _add_record(self) -> None:
        self.record_cycles = self._gauge("record_cycles", "Cycles that the record has.")
        self.record_bytes = self._gauge("record_bytes", "Bytes of the record, snapshots included.")
        self.record_age = self._gauge("record_age_seconds", "For how long back there is a record.")
        self.record_snapshots = self._counter(
            "record_snapshots", "Snapshots written to the record."
        )
