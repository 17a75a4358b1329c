"""Every alert rule. `node` and `service` are labels that Prometheus gives its targets."""

from collections.abc import Iterator

from documents.monitoring.objectives import OBJECTIVES
from documents.monitoring.spec import (
    OF_OWN_NODES,
    OF_SERVICES,
    SERVICE_NAMES,
    Group,
    Objective,
    Rule,
)

RARE = "it exists only while there is something to show"
OWN = f"{{{OF_OWN_NODES}}}"
NO_FENCE = "installations without the fence have none"
NO_ECC = "GPUs without ECC have none"
WHOLE = '{{ $value | printf "%.0f" }}'
AT_GPU = "GPU {{ $labels.minor_number }} of {{ $labels.node_name }}"

GPU = Group(
    name="gpu",
    tells="GPUs of agents with a driver. A cluster without NVIDIA's GPUs switches this group off.",
    rules=(
        Rule(
            name="GpuXidFatal",
            severity="critical",
            expr='increase(muster_agent_gpu_xids_total{tier="fatal"}[5m]) > 0',
            keep="15m",
            summary="GPU {{ $labels.gpu }} of {{ $labels.node }} reported a fatal Xid",
            means="The driver reported an Xid after which NVIDIA asks for a reset or a repair. The"
            " agent has marked the GPU as unhealthy; it gets no new pods.",
            action="`dmesg` on the node has the number. Drain the node, reset the GPU or reboot."
            " If it comes again, replace the GPU.",
        ),
        Rule(
            name="GpuXidProgram",
            severity="warning",
            expr='increase(muster_agent_gpu_xids_total{tier="program"}[1d]) > 10',
            keep="1h",
            summary="GPU {{ $labels.gpu }} of {{ $labels.node }} reported"
            f" {WHOLE} Xids of programs in a day",
            means="These Xids mostly come from programs, and 45 from their stop. Many on one GPU,"
            " of different jobs, point to its hardware.",
            action="Compare the GPU with its neighbours in the dashboard Health. Test it when the"
            " node is drained.",
        ),
        Rule(
            name="GpusUnhealthy",
            severity="warning",
            expr="muster_agent_gpus_unhealthy > 0",
            wait="5m",
            summary="{{ $value }} GPUs of {{ $labels.node }} are unhealthy",
            means="The Scheduler places no new pods on them.",
            action="`muster nodes` has the reason of each.",
        ),
        Rule(
            name="GpuDriverAway",
            severity="critical",
            expr="muster_agent_gpu_driver_up == 0",
            wait="5m",
            summary="The GPU driver of {{ $labels.node }} does not answer",
            means="The last looks of the agent had no answer within `MUSTER_DEVICE_TIMEOUT_S`, or"
            " an error. All its GPUs are unhealthy. Pods run on.",
            action="Try `nvidia-smi` on the node. If it hangs, reboot. If it reports a version"
            " mismatch, restart the agent.",
            openpai=("NvidiaSmiLatencyTooLarge", "NvidiaZombieProcess"),
        ),
        Rule(
            name="GpuUncorrectedEcc",
            severity="critical",
            expr='increase(nvidiasmi_ecc_error_count{type="volatile_double",'
            f" {OF_OWN_NODES}}}[10m]) > 0",
            keep="30m",
            summary=f"{AT_GPU} has uncorrected memory errors",
            means="New errors that ECC could not correct. The program that met them has failed.",
            action="Drain the node and reset the GPU, so that it remaps the rows. If errors come"
            " again, replace it.",
            openpai=("NvidiaSmiDoubleEccError",),
            optional={"nvidiasmi_ecc_error_count": NO_ECC},
        ),
        Rule(
            name="GpuRowsNotRemapped",
            severity="critical",
            expr=f"DCGM_FI_DEV_ROW_REMAP_FAILURE{OWN} > 0",
            summary=f"{AT_GPU} can't remap a memory row",
            means="The GPU has no spare rows left.",
            action="Drain the node and replace the GPU.",
            optional={"DCGM_FI_DEV_ROW_REMAP_FAILURE": NO_ECC},
        ),
        Rule(
            name="GpuRowsToRemap",
            severity="warning",
            expr=f"DCGM_FI_DEV_ROW_REMAP_PENDING{OWN} > 0",
            wait="5m",
            summary=f"{AT_GPU} waits for a reset to remap memory rows",
            means="Rows of its memory had errors and are replaced by the next reset.",
            action="Drain the node when its jobs have ended, then reset the GPU.",
            optional={"DCGM_FI_DEV_ROW_REMAP_PENDING": NO_ECC},
        ),
        Rule(
            name="GpuMemoryLeft",
            severity="warning",
            expr=f"gpu_mem_utilization{OWN} > 5 and on (node)"
            ' (muster_agent_pods{phase="running"} == 0)',
            wait="10m",
            summary=f"{AT_GPU} has used memory, and no pod runs there",
            means="A process that is no pod's holds memory, or the driver has leaked it.",
            action="`nvidia-smi` on the node lists processes. End them, or reset the GPU.",
            openpai=("NvidiaMemoryLeak",),
        ),
        Rule(
            name="GpuUsedByOthers",
            severity="warning",
            expr=f"sum by (node_name, minor_number) (gpu_used_by_external_process_count{OWN}) > 0",
            wait="5m",
            summary=f"{{{{ $value }}}} processes that are no task's use {AT_GPU}",
            means="Somebody uses the GPU past Muster, by `ssh` or `docker`, or an ended task's"
            " process lives on. The GPU is unhealthy until they end.",
            action="`gpu_used_by_external_process_count` has the process ids; `ps -fp` shows whose"
            " they are. End them, or drain the node.",
            openpai=("GpuUsedByExternalProcess", "GpuUsedByZombieContainer"),
            optional={"gpu_used_by_external_process_count": RARE},
        ),
        Rule(
            name="GpuCountFell",
            severity="critical",
            expr="configured_gpu_count < max_over_time(configured_gpu_count[1d])",
            wait="5m",
            keep="15m",
            summary="{{ $labels.node }} has {{ $value }} GPUs, fewer than within the last day",
            means="A GPU fell off its bus, or a MIG device was destroyed.",
            action="Compare with `nvidia-smi -L`, and `dmesg` for Xid 79. Reboot the node.",
            openpai=("NodeGpuCountChanged",),
        ),
        Rule(
            name="GpuSlowUnderLoad",
            severity="warning",
            expr=f"DCGM_FI_DEV_PSTATE{OWN} >= 8 and DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{OWN} == 0"
            f" and gpu_utilization{OWN} > 50",
            wait="5m",
            summary=f"{AT_GPU} works in the slow state P{{{{ $value }}}} without a reason",
            means="Kernels run, the clocks are low, and the driver has no reason for that. An idle"
            " GPU is slow on purpose, and does not count.",
            action="Drain the node. Reset the clocks with `nvidia-smi -rac` and `-rgc`, or reboot.",
            openpai=("NodeGpuLowPerfState",),
        ),
        Rule(
            name="GpuThrottledByHardware",
            severity="warning",
            # 8: hardware slowdown; 64: heat; 128: power brake. PromQL has no bitwise "and".
            expr=f"(floor(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{OWN} / 8) % 2"
            f" + floor(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{OWN} / 64) % 2"
            f" + floor(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{OWN} / 128) % 2) > 0",
            wait="10m",
            summary=f"Hardware slows {AT_GPU}",
            means="Heat or the power supply keeps the clocks low; the whole job is as slow as this"
            " GPU.",
            action="Look at temperature and power in the dashboard of the node. Check fans and"
            " power supplies.",
        ),
        Rule(
            name="GpuHot",
            severity="warning",
            expr=f"DCGM_FI_DEV_GPU_TEMP{OWN} > 90",
            wait="5m",
            keep="10m",
            summary=f"{AT_GPU} has {{{{ $value }}}} degrees",
            means="Above 90 degrees GPUs throttle, and soon shut down.",
            action="Check the cooling of the node and its neighbours.",
        ),
    ),
)

NODES = Group(
    name="nodes",
    tells="Nodes and their agents.",
    rules=(
        Rule(
            name="NodesLost",
            severity="critical",
            expr="increase(muster_scheduler_nodes_lost_total[10m]) > 0",
            keep="10m",
            summary=f"Nodes declared lost: {WHOLE}",
            means="The Scheduler has not received their agents for a lease. Their pods count as"
            " failed and start elsewhere, at no cost to the users.",
            action="`muster nodes` names them. Look at network, power and agent.",
            openpai=("NodeNotReady",),
        ),
        Rule(
            name="NodesUnhealthy",
            severity="warning",
            expr='max(muster_scheduler_nodes{state="unhealthy"}) > 0',
            wait="10m",
            summary="{{ $value }} nodes are unhealthy",
            means="They get no new pods.",
            action="`muster nodes` has the reason of each.",
            openpai=("NodeDiskPressure",),
        ),
        Rule(
            name="NodesWithheld",
            severity="critical",
            expr="max(muster_scheduler_nodes_withheld) > 0",
            wait="2m",
            summary="{{ $value }} nodes fell silent together",
            means="Too many fell silent at once, so the Scheduler declares none lost.",
            action="Repair the network or the bus. If the nodes are gone for good, see the"
            " Scheduler's runbook.",
        ),
        Rule(
            name="NodeNamesClash",
            severity="critical",
            expr="max(muster_scheduler_node_name_clashes) > 0",
            wait="1m",
            summary="{{ $value }} node names have reports from two machines",
            means="Two agents have the same name, as after a machine was cloned.",
            action="`muster nodes` has both addresses. Stop one agent and give its machine another"
            " name.",
        ),
        Rule(
            name="NodeClockOff",
            severity="warning",
            expr="abs(timestamp(muster_agent_clock_seconds) - muster_agent_clock_seconds) > 10",
            wait="5m",
            summary='The clock of {{ $labels.node }} is {{ $value | printf "%.0f" }} s off',
            means="It differs from Prometheus's clock. From 30 s on the node refuses to show logs."
            " Times in logs and reports are wrong.",
            action="Have NTP or the hypervisor set the node's clock. If all nodes are off,"
            " Prometheus's own clock is wrong.",
        ),
        Rule(
            name="NodeDiskNearlyFull",
            severity="warning",
            expr="muster_agent_node_disk_available_bytes / muster_agent_node_disk_bytes < 0.15",
            wait="5m",
            summary="{{ $labels.node_name }} has {{ $value | humanizePercentage }} of its disk"
            " left",
            means="The file system with pods and logs is nearly full.",
            action="Lower `MUSTER_LOGS_MAX_MB`, or remove what does not belong there.",
            openpai=("NodeFilesystemUsage",),
        ),
        Rule(
            name="NodeOutOfDisk",
            severity="critical",
            expr="muster_agent_journal_reserve_bytes < 2097152",
            wait="1m",
            keep="5m",
            summary="The agent of {{ $labels.node }} writes from its reserve",
            means="The disk is or was full. New pods can't start; ends and stops still work.",
            action="Free space on the node; the agent goes on by itself.",
            openpai=("NodeOutOfDisk",),
        ),
        Rule(
            name="NodeMemoryFull",
            severity="warning",
            expr="muster_agent_node_memory_available_bytes / muster_agent_node_memory_bytes < 0.05",
            wait="5m",
            summary="{{ $labels.node_name }} has {{ $value | humanizePercentage }} of its memory"
            " left",
            means="The kernel soon ends a process.",
            action="Look for the task in the dashboard of the node. Have agents limit memory.",
            openpai=("NodeMemoryUsage",),
        ),
        Rule(
            name="NodeCpuBusy",
            severity="info",
            expr="1 - (sum by (node_name) (rate(muster_agent_node_cpu_seconds_total"
            '{mode="idle"}[5m])) / sum by (node_name) (rate('
            "muster_agent_node_cpu_seconds_total[5m]))) > 0.98",
            wait="30m",
            summary="The processors of {{ $labels.node_name }} have been busy for half an hour",
            means="Tasks on this node get less CPU than they could use; GPUs may wait for them.",
            action="Compare GPU utilisation. Have agents limit CPUs, or ask for more per GPU.",
            openpai=("NodeCPUUsage",),
        ),
        Rule(
            name="AgentAway",
            severity="critical",
            expr='up{service="runtime-agent"} == 0',
            wait="5m",
            summary="Prometheus can't scrape the agent of {{ $labels.node }}",
            means="The agent or its node is down, or it refuses the token.",
            action="Open Prometheus's page of targets: it has the error.",
            openpai=("WatchdogNotUp",),
        ),
        Rule(
            name="AgentLooksHang",
            severity="warning",
            expr='up{service="runtime-agent"} == 1 unless on (node) muster_agent_node_load1',
            wait="10m",
            summary="The agent of {{ $labels.node }} exports nothing of what is used",
            means="Its looks at GPUs, tasks and the node hang or fail.",
            action="Read the agent's log. A GPU driver that hangs needs a reboot.",
            openpai=("JobExporterHangs",),
        ),
        Rule(
            name="PodsNotStarting",
            severity="warning",
            expr='muster_agent_pods{phase="accepted"} > 0',
            wait="30m",
            summary="{{ $value }} pods on {{ $labels.node }} have not started for half an hour",
            means="The agent has accepted them, and their command has not begun.",
            action="`muster why JOB` and the agent's log have the reason. On Kubernetes it is"
            " mostly an image that can't be pulled.",
            openpai=("PaiJobPending",),
        ),
        Rule(
            name="PodsCantLaunch",
            severity="critical",
            expr='increase(muster_agent_effects_failed_total{effect="launch"}[10m]) > 0',
            wait="5m",
            summary="The agent of {{ $labels.node }} can't launch pods",
            means="Launches fail and are retried.",
            action="The agent's log has the error: no space, no processes left, no `bash`.",
            openpai=("k8sDockerDaemonNotOk",),
        ),
        Rule(
            name="PodsNotRemoved",
            severity="info",
            expr='sum by (node) (increase(muster_agent_effects_failed_total{effect=~"stop|forget'
            '|remove"}[1h])) > 0',
            wait="1h",
            summary="The agent of {{ $labels.node }} can't stop or remove pods",
            means="Something of ended pods is left: processes, containers or files.",
            action="The agent's log names them.",
            openpai=("PaiJobsZombie",),
        ),
        Rule(
            name="KubernetesApiAway",
            severity="critical",
            expr='rate(muster_agent_kube_requests_total{outcome="unlisted"}[5m]) > 0',
            wait="10m",
            summary="The agent of {{ $labels.node }} can't read from the API server",
            means="It can't list its node or its pods. Pods run on; launches and ends wait.",
            action="The agent's log has the reason: the API server is away or overloaded, or a"
            " right is missing.",
            openpai=("k8sApiServerNotOk",),
        ),
        Rule(
            name="FenceWaits",
            severity="critical",
            expr="max(muster_fence_nodes_waiting) > 0",
            wait="10m",
            summary="The fence can't delete the pods of lost nodes",
            means="kubelet may run them on, beside their successors on other nodes.",
            action="The log of `muster-fence` has the API server's words.",
            optional={"muster_fence_nodes_waiting": NO_FENCE},
        ),
        Rule(
            name="JournalLost",
            severity="critical",
            expr="increase(muster_scheduler_lost_journals_total[10m]) > 0",
            keep="30m",
            summary="An agent has lost its journal while it had pods",
            means="Its folder was removed, or the id of its machine changed. Its pods have failed.",
            action="The Scheduler's log names the node. Keep `MUSTER_AGENT_HOME` on a disk that"
            " lasts.",
        ),
    ),
)

SCHEDULER = Group(
    name="scheduler",
    tells="The Scheduler's own health.",
    rules=(
        Rule(
            name="SchedulerWithoutLeader",
            severity="critical",
            expr="max(muster_scheduler_is_leader) < 1",
            wait="1m",
            summary="No process of the Scheduler leads",
            means="Nothing is placed. Running jobs run on.",
            action="Check that a process runs and that its database is writable.",
        ),
        Rule(
            name="SchedulerCutOff",
            severity="critical",
            expr="muster_scheduler_is_leader == 1 and muster_scheduler_probe_round == 0",
            wait="2m",
            summary="The Scheduler's leader is cut off from the bus",
            means="What it writes does not come back. No node can be lost meanwhile.",
            action="Check the route to every broker, and the CPU of the process.",
        ),
        Rule(
            name="SchedulerAccountingDrift",
            severity="critical",
            expr="muster_scheduler_drifted_gangs > 0",
            keep="10m",
            summary="The Scheduler's accounting of {{ $value }} gangs differs from their"
            " placements",
            means="What the leader counts as gangs come and go is not what their placements are."
            " Nothing is given twice, but gangs may wait or be preempted needlessly.",
            action="Save `muster export cluster.json events.jsonl --since 2h`, restart the leader,"
            " and report both. `muster_scheduler_drift` has the gangs.",
        ),
        Rule(
            name="SchedulerAuditStands",
            severity="warning",
            expr="(muster_scheduler_is_leader == 1) and"
            " (changes(muster_scheduler_audits_total[10m]) == 0)",
            wait="5m",
            summary="The Scheduler has not come to the end of a self-audit for 15 minutes",
            means="The leader audits its accounting every minute. Its cycles never end, so drifts"
            " are not found.",
            action="See `muster_scheduler_cycle_parts_total` and the time of a cycle. Give the"
            " leader more CPU.",
        ),
        Rule(
            name="SchedulerConfigurationBehind",
            severity="warning",
            expr="muster_scheduler_configuration_behind > 0",
            wait="10m",
            summary="The newest configuration of the cluster can't be applied",
            means="The hardware can't honour it, so the one before stays in force.",
            action="`muster config show` has the reason. Set one that fits, or bring nodes back.",
        ),
        Rule(
            name="PreemptionOverdue",
            severity="warning",
            expr="max(muster_scheduler_overdue_gangs) > 0",
            wait="10m",
            summary="{{ $value }} preempted gangs hold their pods past the deadline",
            means="Gangs that preempted them wait for their cells.",
            action="Look at the Launcher, then at the agents of those pods.",
        ),
        Rule(
            name="SchedulerRebuilds",
            severity="warning",
            expr="increase(muster_scheduler_rebuilds_total[30m]) > 5",
            summary=f"The Scheduler rebuilt its memory {WHOLE} times in half an hour",
            means="Its transactions fail, so it reads everything anew.",
            action='See its log line "memory is rebuilt"; check the database.',
        ),
    ),
)

SERVICES = Group(
    name="services",
    tells="Services, bus and notifications.",
    rules=(
        Rule(
            name="ServiceAway",
            severity="critical",
            expr=" or ".join(
                f'label_replace(absent(up{{service="{service}"}} == 1),'
                f' "service", "{service}", "", "")'
                for service in SERVICE_NAMES
            ),
            wait="5m",
            summary="No process of {{ $labels.service }} can be scraped",
            means="All its processes are down, Prometheus lacks them, or they refuse the token.",
            action="Open Prometheus's page of targets: it has the error.",
            openpai=("PaiServicePodNotRunning", "PaiServicePodNotReady"),
            optional={"up": "the rule itself fires without it"},
        ),
        Rule(
            name="ServiceMemory",
            severity="warning",
            expr='process_resident_memory_bytes{service="runtime-agent"} > 1073741824'
            f" or process_resident_memory_bytes{{{OF_SERVICES}}} > 4294967296",
            wait="5m",
            summary="{{ $labels.service }} uses {{ $value | humanize1024 }}B of memory",
            means="Agents need less than 1 GiB, other services less than 4 GiB.",
            action="Restart it: nothing is lost. Report it with the log.",
            openpai=("AzureAgentConsumeTooMuchMem",),
        ),
        Rule(
            name="BusAway",
            severity="critical",
            expr="muster_bus_up == 0",
            wait="2m",
            summary="The bus does not answer {{ $labels.service }}",
            means="Messages wait in their rows; nothing is lost and no job fails.",
            action="Restore the broker, or the route to it.",
        ),
        Rule(
            name="BusRefuses",
            severity="critical",
            expr="muster_bus_refusals > 0",
            wait="2m",
            summary="The bus refuses {{ $labels.service }} a right or its password",
            means="The log of the service names what is refused.",
            action="Compare Kafka's users and rights with docs/kafka-acls.md.",
        ),
        Rule(
            name="DeadLetters",
            severity="critical",
            expr="sum by (service, topic) (increase(muster_dead_letters_total[15m])) > 0",
            keep="15m",
            summary="{{ $labels.service }} rejected records of {{ $labels.topic }}",
            means="A record that can't be handled went to `<topic>.dead-letter`. What it is about"
            " may hang.",
            action="The dead letter has the reason. Fix it, then run `muster events redrive`.",
        ),
        Rule(
            name="MessagesUnacknowledged",
            severity="warning",
            expr="muster_unacknowledged_messages > 100",
            wait="30m",
            summary="The other side of {{ $labels.service }} does not acknowledge messages",
            means="For half an hour there were more than 100 such messages.",
            action="A reader is away or too slow: see the lag in the dashboard Bus and services.",
        ),
        Rule(
            name="LauncherTimersLate",
            severity="warning",
            expr="muster_launcher_timer_lag_seconds > 60",
            wait="5m",
            summary="The Launcher handles timers {{ $value | humanizeDuration }} late",
            means="More timers are due than it handles: retries, time limits and kills come late.",
            action="Check its database. Add a replica, or raise `MUSTER_JOB_TIMER_BATCH`.",
        ),
        Rule(
            name="DeliveriesGivenUp",
            severity="warning",
            expr="sum by (channel) (increase(muster_alerting_deliveries_given_up_total{why!~"
            '"unsubscribed"}[1h])) > 0',
            keep="1h",
            summary="Notifications by {{ $labels.channel }} were given up",
            means="Receivers did not take them within the schedule of retries, or refused them.",
            action="Alerting's runbook shows how to find the receivers and their answers.",
        ),
        Rule(
            name="AlertmanagerTakesNoAlerts",
            severity="warning",
            expr="muster_alerting_alertmanager_up == 0",
            wait="5m",
            summary="Alertmanager {{ $labels.alertmanager }} does not take Muster's alerts",
            means="Alerts of nodes, jobs and event rules do not reach who is called by it.",
            action="Alerting's log has the answer after `Alertmanager takes no alerts`. Check the"
            " address and log-in in `MUSTER_ALERTMANAGER_URLS`.",
            optional={"muster_alerting_alertmanager_up": "few sites set MUSTER_ALERTMANAGER_URLS"},
        ),
    ),
)

JOBS = Group(
    name="jobs",
    tells="Jobs and the GPUs that they hold.",
    rules=(
        Rule(
            name="JobGpusIdle",
            severity="info",
            expr="avg by (username, job_name, virtual_cluster)"
            " (avg_over_time(task_gpu_percent[30m])) < 5",
            wait="1h",
            summary="{{ $labels.job_name }} of {{ $labels.username }} has had idle GPUs for an"
            " hour",
            means="The mean utilisation of all its GPUs over half an hour has been below 5 percent"
            " for an hour. The metric is a percentage: OpenPAI's 0.3 is a third of a percent.",
            action="Ask the user, who sees the alert too if Alertmanager sends it to Muster, and"
            " gets it with a subscription to `alert-raised`. Or let Alerting stop such jobs.",
            openpai=("PAIJobGpuPercentLowerThan0_3For1h",),
            optional={"task_gpu_percent": RARE},
        ),
        Rule(
            name="ManyJobsFail",
            severity="warning",
            expr='sum(increase(muster_jobs_ended_total{state="FAILED"}[30m])) > 20 and'
            ' sum(increase(muster_jobs_ended_total{state="FAILED"}[30m]))'
            " > 0.5 * sum(increase(muster_jobs_ended_total[30m]))",
            keep="10m",
            summary="More than half of the jobs that end have failed",
            means="More than 20 jobs failed in half an hour, and more than half of all that ended.",
            action="`muster why` on some: a common node, image or storage is the cause.",
        ),
        Rule(
            name="AttemptsRetriedOften",
            severity="warning",
            expr="increase(muster_job_attempts_retried_total[30m]) > 50",
            keep="10m",
            summary=f"{WHOLE} job attempts were retried in half an hour",
            means="One cause fails many attempts.",
            action='The Launcher\'s log line "a job is tried again" names the jobs.',
        ),
    ),
)


FEW_FAILURES = 5
"""Fewer are no alert: where little happens, a single one is a large share."""


def _burn_rules(objective: Objective) -> Iterator[Rule]:
    """Of the SRE workbook: long windows with short ones, so that an alert ends soon after."""

    def both(factor: float, long: str, short: str) -> str:
        return (
            f"({objective.burn_rate(long)} > {factor:g} and"
            f" {objective.burn_rate(short)} > {factor:g} and"
            f" {objective.failures(long)} > {FEW_FAILURES})"
        )

    yield Rule(
        name=f"{objective.name}BudgetBurnsFast",
        severity="critical",
        expr=f"{both(14.4, '1h', '5m')} or {both(6, '6h', '30m')}",
        wait="2m",
        keep="5m",
        summary=f"Too many failures: {objective.title[0].lower()}{objective.title[1:]}",
        means=f"{objective.means} A month's allowed failures would be used up within days."
        f" The promise is {objective.target:.4g}.",
        action=objective.action,
    )
    yield Rule(
        name=f"{objective.name}BudgetBurnsSlowly",
        severity="warning",
        expr=both(1, "3d", "6h"),
        wait="1h",
        summary=f"The error budget shrinks: {objective.title[0].lower()}{objective.title[1:]}",
        means=f"{objective.means} Slowly, but for days, more than the promise allows."
        f" The promise is {objective.target:.4g}.",
        action=objective.action,
    )


PROMISES = Group(
    name="promises",
    tells="Burn rates of Muster's own objectives, by two windows each.",
    rules=tuple(rule for each in OBJECTIVES for rule in _burn_rules(each)),
)

GROUPS = (GPU, NODES, SCHEDULER, SERVICES, JOBS, PROMISES)
