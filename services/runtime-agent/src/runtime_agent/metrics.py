"""Every metric of the agent; OpenPAI's names where it has one."""

from __future__ import annotations

import time

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime_agent.domain.verdict import RULES

EFFECTS = ("launch", "stop", "look", "forget", "remove")


class AgentMetrics:
    """What the agent counts. Label values are bounded: phases, rules and Xids."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Gauge("muster_agent_pods", "Live pods, by phase.", ["phase"], registry=registry)
        self.ended = Counter(
            "muster_agent_pods_ended",
            "Ended pods, by the rule of their verdict.",
            ["rule"],
            registry=registry,
        )
        for rule in RULES:  # 0 from the start, else Prometheus misses the first ones
            self.ended.labels(rule)
        self.start_seconds = Histogram(
            "muster_agent_pod_start_seconds",
            "Seconds from applying a pod's request to its start.",
            buckets=SECONDS,
            registry=registry,
        )
        self.journal_failures = Counter(
            "muster_agent_journal_failures",
            "Failed writes of the journal, each of which is retried.",
            registry=registry,
        )
        self.journal_reserve_bytes = Gauge(
            "muster_agent_journal_reserve_bytes",
            "Bytes that the journal can still write on a full disk.",
            registry=registry,
        )
        self.effects_failed = Counter(
            "muster_agent_effects_failed",
            "Failed launches, stops, looks and removals of pods, each of which is retried.",
            ["effect"],
            registry=registry,
        )
        for effect in EFFECTS:
            self.effects_failed.labels(effect)
        self.kube_requests = Counter(
            "muster_agent_kube_requests",
            "Requests about pods to the API server, by what came of them: done, refused, later."
            " unlisted: failed lists of the node or its pods.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("done", "refused", "later", "unlisted"):
            self.kube_requests.labels(outcome)
        self.kube_strays = Counter(
            "muster_agent_kube_strays",
            "Deleted pod objects that the journal does not want, by why: unknown, other-journal,"
            " other-record.",
            ["why"],
            registry=registry,
        )
        self.start_permits = Counter(
            "muster_agent_start_permits",
            "Answers to containers that asked for a start permit: first, granted, later, second,"
            " denied.",
            ["answer"],
            registry=registry,
        )
        clock = Gauge(
            "muster_agent_clock_seconds",
            "Unix time by this node's clock. Prometheus compares it with its own.",
            registry=registry,
        )
        clock.set_function(time.time)
        self.gpus = Gauge("configured_gpu_count", "GPUs of this node.", registry=registry)
        self.gpus_unhealthy = Gauge(
            "muster_agent_gpus_unhealthy", "Unhealthy GPUs of this node.", registry=registry
        )
        self.gpu_driver_up = Gauge(
            "muster_agent_gpu_driver_up",
            "1: the GPU driver answered the last look, or the node has none. 0: it did not.",
            registry=registry,
        )
        self.gpu_xids = Counter(
            "muster_agent_gpu_xids",
            "Xids of a GPU. The tier is fatal: it made the GPU unhealthy, or program: it did not.",
            ["gpu", "tier"],
            registry=registry,
        )
        self.usage_failures = Counter(
            "muster_agent_usage_failures",
            "Looks at what GPUs, tasks and the node use that failed.",
            registry=registry,
        )
        self.log_bytes = Gauge(
            "muster_agent_log_bytes", "Bytes of all logs on this node.", registry=registry
        )
        self.log_streams = Gauge("muster_agent_log_streams", "Followed logs.", registry=registry)
