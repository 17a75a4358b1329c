"""Every metric of the agent; OpenPAI's names where it has one."""

from __future__ import annotations

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class AgentMetrics:
    """What the agent counts. Label values are bounded: phases, rules and Xids."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Gauge("muster_agent_pods", "Live pods, by phase.", ["phase"], registry=registry)
        self.ended = Counter(
            "muster_agent_pods_ended",
            "Pods that ended, by the rule of their verdict.",
            ["rule"],
            registry=registry,
        )
        self.start_seconds = Histogram(
            "muster_agent_pod_start_seconds",
            "From the request being applied to the pod being seen to run.",
            buckets=SECONDS,
            registry=registry,
        )
        self.journal_failures = Counter(
            "muster_agent_journal_failures",
            "Steps that the disk did not take and that are tried again.",
            registry=registry,
        )
        self.journal_reserve_bytes = Gauge(
            "muster_agent_journal_reserve_bytes",
            "What the journal can still take on a full disk.",
            registry=registry,
        )
        self.effects_failed = Counter(
            "muster_agent_effects_failed",
            "Launches, stops and removals that failed and are tried again.",
            ["effect"],
            registry=registry,
        )
        self.gpus = Gauge("configured_gpu_count", "GPUs of the node.", registry=registry)
        self.gpus_unhealthy = Gauge(
            "muster_agent_gpus_unhealthy", "GPUs that should not be used.", registry=registry
        )
        self.gpu_driver_up = Gauge(
            "muster_agent_gpu_driver_up",
            "1: the GPU driver answered the last look, or the node has none. 0: it did not.",
            registry=registry,
        )
        self.gpu_xids = Counter(
            "muster_agent_gpu_xids",
            "Xids that made a GPU unhealthy, by number.",
            ["xid"],
            registry=registry,
        )
        self.log_bytes = Gauge(
            "muster_agent_log_bytes", "Of all logs kept on this node.", registry=registry
        )
        self.log_streams = Gauge(
            "muster_agent_log_streams", "Logs that somebody follows.", registry=registry
        )
