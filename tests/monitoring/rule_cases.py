"""For each alert rule: series with which it fires, and others with which it stays silent.

Values are in promtool's notation, one a minute or in each `interval`: `0+1x60` counts up for an
hour. `at`: when.
"""

from dataclasses import dataclass

from documents.monitoring.objectives import OBJECTIVES
from documents.monitoring.spec import Objective

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """What a rule makes of some series."""

    fires: Series
    silent: Series
    at: str = "1h"
    interval: str = "1m"


ON = '{node="a", node_name="a", minor_number="0", gpu="0"}'
NODE = '{node="a", node_name="a"}'
ZERO, ONE = "0+0x200", "1+0x200"
LATELY = "0+0x57 1+0x10"
"""A counter that rises by 1 three minutes before the hour ends."""
LONG_AGO = "0+0x5 1+0x60"
PEACE = "0+0x60"


def gauge(name: str, fires: str, silent: str, at: str = "1h") -> Case:
    """A rule about one series without more labels than it needs."""
    return Case({name: fires}, {name: silent}, at)


LEADER = 'muster_scheduler_is_leader{instance="a"}'
AUDITS = 'muster_scheduler_audits_total{instance="a"}'
PROBE = 'muster_scheduler_probe_round{instance="a"}'
CPU = 'muster_agent_node_cpu_seconds_total{node_name="a", mode="%s"}'
RUNNING = 'muster_agent_pods{node="a", phase="running"}'
FAILED = 'muster_agent_effects_failed_total{node="a", effect="%s"}'
KUBE = 'muster_agent_kube_requests_total{node="a", outcome="%s"}'
ENDED = 'muster_jobs_ended_total{state="%s"}'
STATE, REASONS = f"DCGM_FI_DEV_PSTATE{ON}", f"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{ON}"
SERVICES = [f'up{{service="{name}"}}' for name in ("rest", "launcher", "scheduler", "alerting")]
OF_JOB = '{username="ann", job_name="ann~train", virtual_cluster="vision", minor_number="%d"}'

CASES: dict[str, Case] = {
    "GpuXidFatal": gauge(
        'muster_agent_gpu_xids_total{node="a", gpu="0", tier="fatal"}', LATELY, LONG_AGO
    ),
    "GpuXidProgram": gauge(
        'muster_agent_gpu_xids_total{node="a", gpu="0", tier="program"}', "0+1x60", "0+0x50 3+0x9"
    ),
    "GpusUnhealthy": gauge(f"muster_agent_gpus_unhealthy{NODE}", ONE, ZERO),
    "GpuDriverAway": gauge(f"muster_agent_gpu_driver_up{NODE}", "1+0x50 0+0x20", "0+0x50 1+0x20"),
    "GpuUncorrectedEcc": gauge(
        f'nvidiasmi_ecc_error_count{{{ON[1:-1]}, type="volatile_double"}}', LATELY, "7+0x60"
    ),
    "GpuRowsNotRemapped": gauge(f"DCGM_FI_DEV_ROW_REMAP_FAILURE{ON}", ONE, ZERO),
    "GpuRowsToRemap": gauge(f"DCGM_FI_DEV_ROW_REMAP_PENDING{ON}", ONE, ZERO),
    "GpuMemoryLeft": Case(
        {f"gpu_mem_utilization{ON}": "40+0x60", RUNNING: ZERO},
        {f"gpu_mem_utilization{ON}": "40+0x60", RUNNING: ONE},
    ),
    "GpuUsedByOthers": Case(
        {'gpu_used_by_external_process_count{node_name="a", minor_number="0", pid="7"}': ONE}, {}
    ),
    "GpuCountFell": gauge(f"configured_gpu_count{NODE}", "8+0x50 7+0x20", "8+0x70"),
    "GpuSlowUnderLoad": Case(
        {STATE: "8+0x60", REASONS: ZERO, f"gpu_utilization{ON}": "90+0x60"},
        {STATE: "8+0x60", REASONS: ZERO, f"gpu_utilization{ON}": PEACE},
    ),
    "GpuThrottledByHardware": gauge(REASONS, "68+0x60", "5+0x60"),
    "GpuHot": gauge(f"DCGM_FI_DEV_GPU_TEMP{ON}", "95+0x60", "85+0x60"),
    "NodesLost": gauge("muster_scheduler_nodes_lost_total", LATELY, LONG_AGO),
    "NodesUnhealthy": Case(
        {'muster_scheduler_nodes{state="unhealthy"}': ONE},
        {
            'muster_scheduler_nodes{state="unhealthy"}': ZERO,
            'muster_scheduler_nodes{state="alive"}': ONE,
        },
    ),
    "NodesWithheld": gauge("muster_scheduler_nodes_withheld", ONE, ZERO),
    "NodeNamesClash": gauge("muster_scheduler_node_name_clashes", ONE, ZERO),
    "NodeDiskNearlyFull": Case(
        {
            f"muster_agent_node_disk_bytes{NODE}": "100+0x60",
            f"muster_agent_node_disk_available_bytes{NODE}": "14+0x60",
        },
        {
            f"muster_agent_node_disk_bytes{NODE}": "100+0x60",
            f"muster_agent_node_disk_available_bytes{NODE}": "16+0x60",
        },
    ),
    "NodeClockOff": gauge(f"muster_agent_clock_seconds{NODE}", "11+60x60", "-9+60x60"),
    "NodeOutOfDisk": gauge(
        f"muster_agent_journal_reserve_bytes{NODE}", "1048576+0x60", "2097152+0x60"
    ),
    "NodeMemoryFull": Case(
        {
            f"muster_agent_node_memory_bytes{NODE}": "100+0x60",
            f"muster_agent_node_memory_available_bytes{NODE}": "4+0x60",
        },
        {
            f"muster_agent_node_memory_bytes{NODE}": "100+0x60",
            f"muster_agent_node_memory_available_bytes{NODE}": "6+0x60",
        },
    ),
    "NodeCpuBusy": Case(
        {CPU % "idle": "0+1x60", CPU % "user": "0+99x60"},
        {CPU % "idle": "0+5x60", CPU % "user": "0+95x60"},
    ),
    "AgentAway": gauge('up{service="runtime-agent", node="a"}', ZERO, ONE),
    "AgentLooksHang": Case(
        {'up{service="runtime-agent", node="a"}': ONE},
        {'up{service="runtime-agent", node="a"}': ONE, f"muster_agent_node_load1{NODE}": ZERO},
    ),
    "PodsNotStarting": gauge('muster_agent_pods{node="a", phase="accepted"}', ONE, "0+0x40 1+0x20"),
    "PodsCantLaunch": gauge(FAILED % "launch", "0+1x60", LONG_AGO),
    "PodsNotRemoved": gauge(FAILED % "forget", "0+1x150", "0+0x50 1+0x100", at="150m"),
    "KubernetesApiAway": Case(
        {KUBE % "unlisted": "0+1x60", KUBE % "later": ZERO},
        {KUBE % "unlisted": LONG_AGO, KUBE % "later": "0+1x60"},
    ),
    "FenceWaits": gauge("muster_fence_nodes_waiting", ONE, "0+0x50 1+0x9"),
    "JournalLost": gauge("muster_scheduler_lost_journals_total", LATELY, ONE),
    "SchedulerWithoutLeader": gauge(LEADER, ZERO, ONE),
    "SchedulerCutOff": Case({LEADER: ONE, PROBE: ZERO}, {LEADER: ONE, PROBE: ONE}),
    "SchedulerAccountingDrift": gauge("muster_scheduler_drifted_gangs", ONE, ZERO),
    "SchedulerAuditStands": Case(
        {LEADER: ONE, AUDITS: "7+0x60"}, {LEADER: ONE, AUDITS: "0+1x60"}
    ),
    "SchedulerConfigurationBehind": gauge("muster_scheduler_configuration_behind", ONE, ZERO),
    "PreemptionOverdue": gauge("muster_scheduler_overdue_gangs", ONE, "0+0x55 1+0x9"),
    "SchedulerRebuilds": gauge("muster_scheduler_rebuilds_total", "0+1x60", "0+0x50 2+0x20"),
    "ServiceAway": Case(
        {**dict.fromkeys(SERVICES[:3], ONE), SERVICES[3]: ZERO}, dict.fromkeys(SERVICES, ONE)
    ),
    "ServiceMemory": Case(
        {'process_resident_memory_bytes{service="runtime-agent"}': "2e9+0x60"},
        {
            'process_resident_memory_bytes{service="runtime-agent"}': "1e9+0x60",
            'process_resident_memory_bytes{service="kubernetes"}': "9e9+0x60",
        },
    ),
    "BusAway": gauge('muster_bus_up{service="rest"}', ZERO, ONE),
    "BusRefuses": gauge('muster_bus_refusals{service="rest"}', ONE, ZERO),
    "DeadLetters": gauge(
        'muster_dead_letters_total{service="launcher", topic="pod-failed"}', LATELY, LONG_AGO
    ),
    "MessagesUnacknowledged": gauge(
        'muster_unacknowledged_messages{service="rest"}', "200+0x60",
        "200+0x10 5+0x1 _x18 200+0x30", at="50m",
    ),
    "LauncherTimersLate": gauge("muster_launcher_timer_lag_seconds", "90+0x60", "5+0x60"),
    "DeliveriesGivenUp": Case(
        {'muster_alerting_deliveries_given_up_total{channel="mail", why="refused"}': LATELY},
        {'muster_alerting_deliveries_given_up_total{channel="mail", why="unsubscribed"}': LATELY},
    ),
    "AlertmanagerTakesNoAlerts": gauge("muster_alerting_alertmanager_up", ZERO, ONE),
    "JobGpusIdle": Case(
        {f"task_gpu_percent{OF_JOB % 0}": "1+0x120"},
        {f"task_gpu_percent{OF_JOB % 0}": "1+0x120", f"task_gpu_percent{OF_JOB % 1}": "60+0x120"},
        at="2h",
    ),
    "ManyJobsFail": Case(
        {ENDED % "FAILED": "0+2x60", ENDED % "SUCCEEDED": "0+1x60"},
        {ENDED % "FAILED": "0+2x60", ENDED % "SUCCEEDED": "0+3x60"},
    ),
    "AttemptsRetriedOften": gauge("muster_job_attempts_retried_total", "0+3x60", "0+1x60"),
}  # fmt: skip


def _burns(objective: Objective, good: int, steps: int) -> Series:
    """Of 100,000 requests in each interval so many are good."""
    whole = {objective.total: f"0+100000x{steps}"}
    if objective.total.endswith("}"):  # by status
        labels = objective.total.removesuffix("}")
        served, failed = f'{labels}, status="202"}}', f'{labels}, status="500"}}'
        return {served: f"0+{good}x{steps}", failed: f"0+{100000 - good}x{steps}"}
    return {objective.good: f"0+{good}x{steps}", **whole}


def _share(objective: Objective, factor: float) -> int:
    """The good ones of 100,000 when the budget burns so many times faster than allowed."""
    return round(100_000 * (1 - factor * (1 - objective.target)))


for each in OBJECTIVES:
    CASES[f"{each.name}BudgetBurnsFast"] = Case(
        _burns(each, _share(each, 16), 60), _burns(each, _share(each, 5), 60)
    )
    CASES[f"{each.name}BudgetBurnsSlowly"] = Case(
        _burns(each, _share(each, 1.2), 150),
        _burns(each, _share(each, 0.8), 150),
        at="74h",
        interval="30m",
    )
