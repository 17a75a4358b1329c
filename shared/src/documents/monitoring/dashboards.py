"""Every dashboard. Labels of tasks are OpenPAI's; `node` and `service` come from Prometheus."""

from documents.monitoring.objectives import OBJECTIVES
from documents.monitoring.spec import (
    OF_OWN_NODES,
    SERVICE_NAMES,
    Dashboard,
    Objective,
    Panel,
    Row,
    Variable,
)

RATE = "[$__rate_interval]"
NODE = Variable("node", "muster_agent_node_load1", "node_name")
OWN = f"{{{OF_OWN_NODES}}}"
OF_PROCESSES = f'{{service=~"{"|".join(SERVICE_NAMES)}|runtime-agent|fence"}}'
OF_NODE = 'node_name=~"$node"'
GPU = Variable("gpu", "gpu_utilization", "minor_number")
OF_GPU = f'{OF_NODE}, minor_number=~"$gpu"'
CLUSTER_OF_JOBS = Variable("virtual_cluster", "task_cpu_percent", "virtual_cluster")
JOB = Variable("job", "task_cpu_percent", "job_name", many=False)
ROLE = Variable("role", "task_cpu_percent", "role_name", many=False)
TASK = Variable("task", "task_cpu_percent", "task_index", many=False)
OF_JOB = 'virtual_cluster=~"$virtual_cluster", job_name=~"$job"'
OF_ROLE = f'{OF_JOB}, role_name=~"$role"'
OF_TASK = f'{OF_ROLE}, task_index=~"$task"'


def _p95(histogram: str, by: str = "le", share: str = "0.95", where: str = "") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket{where}{RATE})))"


def _value(title: str, unit: str, query: str, tells: str, action: str) -> Panel:
    return Panel(title, unit, query, tells, action, shape="value")


def _node_rows(where: str, by: str) -> tuple[Row, Row]:
    """Processors, memory, disks, network and GPUs, of all nodes together or of each."""
    legend = "{{node_name}}" if by else "all"

    def total(expression: str) -> str:
        return f"sum {by}({expression})"

    def of(name: str) -> str:
        return f"{name}{{{where}}}"

    def rate(name: str) -> str:
        return f"rate({of(name)}{RATE})"

    cpu = "muster_agent_node_cpu_seconds_total"
    idle = f'{cpu}{{{where}, mode="idle"}}'
    memory, free = (
        of("muster_agent_node_memory_bytes"),
        of("muster_agent_node_memory_available_bytes"),
    )
    disk, room = of("muster_agent_node_disk_bytes"), of("muster_agent_node_disk_available_bytes")
    return (
        Row(
            "Processors, memory, disks, network",
            (
                Panel(
                    "CPU", "percentunit",
                    f"1 - {total(f'rate({idle}{RATE})')} / {total(rate(cpu))}",
                    "Share of the processors' time that is used.",
                    "Near 1 for long: tasks compute on processors what they planned for GPUs.",
                    legend,
                ),
                Panel(
                    "Memory", "percentunit", f"1 - {total(free)} / {total(memory)}",
                    "Share of the memory that programs could not get.",
                    "Near 1: the kernel soon ends a process. Look for the task in its node.",
                    legend,
                ),
                Panel(
                    "Disk space", "percentunit", f"1 - {total(room)} / {total(disk)}",
                    "Share of the file system with pods and logs that is used.",
                    "Above 0.8: remove old logs, or lower `MUSTER_LOGS_MAX_MB`.", legend,
                ),
                Panel(
                    "Disk reads", "Bps", total(rate("muster_agent_node_disk_read_bytes_total")),
                    "Bytes read from disks a second.",
                    "High with idle GPUs: the input of jobs waits for disks.", legend,
                ),
                Panel(
                    "Disk writes", "Bps", total(rate("muster_agent_node_disk_written_bytes_total")),
                    "Bytes written to disks a second.",
                    "Look for a task that writes too many checkpoints or logs.", legend,
                ),
                Panel(
                    "Network in", "Bps", total(rate("muster_agent_node_received_bytes_total")),
                    "Bytes received a second.", "Compare it with what the cards can do.", legend,
                ),
                Panel(
                    "Network out", "Bps", total(rate("muster_agent_node_sent_bytes_total")),
                    "Bytes sent a second.", "Compare it with what the cards can do.", legend,
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                Panel(
                    "GPU utilisation", "percent", f"avg {by}({of('gpu_utilization')})",
                    "Percent of time in which a kernel ran, over all GPUs.",
                    "Low with few free GPUs: see the dashboard Efficiency.", legend,
                ),
                Panel(
                    "GPU memory", "percent", f"avg {by}({of('gpu_mem_utilization')})",
                    "Used GPU memory, over all GPUs.",
                    "Low: jobs could share GPUs, or use larger batches.", legend,
                ),
                Panel(
                    "GPU power", "watt", total(of("DCGM_FI_DEV_POWER_USAGE")),
                    "Watts of all GPUs.", "A step down on a busy node: GPUs throttle.", legend,
                ),
            ),
        ),
    )  # fmt: skip


CLUSTER = Dashboard(
    title="Cluster",
    uid="muster-cluster",
    tells="All nodes, GPUs and jobs together.",
    rows=(
        Row(
            "Now",
            (
                _value(
                    "Nodes alive", "none", 'max(muster_scheduler_nodes{state="alive"})',
                    "Nodes whose agent reports.", "Fewer than you have: see Health.",
                ),
                _value(
                    "Healthy GPUs", "none", 'max(muster_scheduler_gpus{state="healthy"})',
                    "GPUs that jobs may get.", "Fewer than you have: see Health.",
                ),
                _value(
                    "Free GPUs", "none", 'max(muster_scheduler_gpus{state="free"})',
                    "Healthy GPUs of no gang.",
                    "Many while gangs wait: the Scheduler's dashboard has their reasons.",
                ),
                _value(
                    "Waiting gangs", "none", "max(muster_scheduler_waiting_gangs)",
                    "Gangs without a placement.", "See Virtual clusters for their reasons.",
                ),
            ),
        ),
        Row(
            "Jobs and GPUs",
            (
                Panel(
                    "GPUs", "none", "max by (state) (muster_scheduler_gpus)",
                    "Healthy and free GPUs.", "A step down of healthy ones: see Health.",
                    "{{state}}",
                ),
                Panel(
                    "Open jobs", "none", "max by (phase) (muster_jobs_open)",
                    "Jobs that have not ended, by phase.",
                    "Growing `waiting`: more is asked for than there is.", "{{phase}}", "stack",
                ),
                Panel(
                    "Ended jobs", "ops", f"sum by (state) (rate(muster_jobs_ended_total{RATE}))",
                    "Jobs that ended a second, by final state.",
                    "Many failures at once: `muster why` on some of them.", "{{state}}", "stack",
                ),
                Panel(
                    "GPUs by model", "none", f"count by (modelName) (gpu_utilization{OWN})",
                    "GPUs that agents look at, by model.",
                    "Fewer than you have: a node is away, or a GPU fell off its bus.",
                    "{{modelName}}", "stack",
                ),
                Panel(
                    "Nodes", "none", "max by (state) (muster_scheduler_nodes)",
                    "Nodes by state.", "`muster nodes` has each node's reason.",
                    "{{state}}", "stack",
                ),
                Panel(
                    "Pods", "none", "sum by (phase) (muster_agent_pods)",
                    "Live pods by phase.", "Pods that stay `accepted`: look at their agents.",
                    "{{phase}}", "stack",
                ),
            ),
        ),
        *_node_rows(OF_OWN_NODES, ""),
    ),
)  # fmt: skip

_CLUSTERS = Variable("virtual_cluster", "muster_scheduler_virtual_cluster_gpus", "virtual_cluster")
_OF_CLUSTER = 'virtual_cluster=~"$virtual_cluster"'


def _of_cluster(state: str, title: str, tells: str, action: str) -> Panel:
    query = (
        "max by (virtual_cluster) (muster_scheduler_virtual_cluster_gpus"
        f'{{{_OF_CLUSTER}, state="{state}"}})'
    )
    return Panel(title, "none", query, tells, action, "{{virtual_cluster}}")


def _of_attempts(title: str, name: str, share: str, tells: str, action: str) -> Panel:
    by = "le, virtual_cluster"
    query = _p95(f"muster_job_{name}_seconds", by, share, f"{{{_OF_CLUSTER}}}")
    return Panel(title, "s", query, tells, action, "{{virtual_cluster}}")


VIRTUAL_CLUSTERS = Dashboard(
    title="Virtual clusters",
    uid="muster-virtual-clusters",
    tells="What each virtual cluster has, uses and waits for.",
    variables=(_CLUSTERS,),
    rows=(
        Row(
            "GPUs",
            (
                _of_cluster("quota", "Quota", "GPUs that it owns.", "`muster config` changes it."),
                _of_cluster(
                    "charged", "Used quota", "GPUs of its quota that its gangs are charged.",
                    "At the quota for long: give it more, or let its jobs borrow.",
                ),
                _of_cluster(
                    "lent", "Lent", "GPUs of its quota that others have borrowed.",
                    "It gets them back by preemption when it asks.",
                ),
                _of_cluster(
                    "borrowed", "Borrowed", "GPUs of other quotas that its gangs use.",
                    "For long: its own quota is too small.",
                ),
                _of_cluster(
                    "opportunistic", "Opportunistic", "GPUs that its opportunistic gangs use.",
                    "These are preempted first.",
                ),
                Panel(
                    "Waiting GPUs", "none",
                    "max by (virtual_cluster, reason) (muster_scheduler_waiting_gpus"
                    f"{{{_OF_CLUSTER}}})",
                    "GPUs that waiting gangs ask for, by reason.",
                    "`muster why JOB` has what must happen first.",
                    "{{virtual_cluster}} {{reason}}", "stack",
                ),
                Panel(
                    "GPUs in use, by user", "none",
                    "count by (virtual_cluster, username) (task_gpu_percent"
                    f"{{{_OF_CLUSTER}}})",
                    "GPUs that tasks of each user have.",
                    "One user has nearly all: fair share orders only waiting gangs.",
                    "{{virtual_cluster}} {{username}}", "stack",
                ),
                Panel(
                    "GPUs held, by user", "none",
                    "max by (virtual_cluster, user, held_as) (muster_scheduler_user_gpus"
                    f"{{{_OF_CLUSTER}}})",
                    "GPUs that gangs of each user hold: in the own quota, borrowed, or"
                    " opportunistic.",
                    "Much borrowed for long: the virtual cluster's own quota is too small.",
                    "{{virtual_cluster}} {{user}} {{held_as}}", "stack",
                ),
                Panel(
                    "GPUs asked for, by user", "none",
                    "max by (virtual_cluster, user, phase) (muster_user_gpus"
                    f"{{{_OF_CLUSTER}}})",
                    "GPUs of each user's open jobs, by the phase of the job.",
                    "`waiting` far above the quota: the user asks for more than there is.",
                    "{{virtual_cluster}} {{user}} {{phase}}", "stack",
                ),
                Panel(
                    "GPU utilisation", "percent",
                    f"avg by (virtual_cluster) (task_gpu_percent{{{_OF_CLUSTER}}})",
                    "How busy the GPUs of its tasks are.",
                    "Low: see Efficiency for the jobs.", "{{virtual_cluster}}",
                ),
            ),
        ),
        Row(
            "Times of job attempts",
            (
                _of_attempts(
                    "Queue, median", "queue", "0.5", "From an attempt's begin to its placement.",
                    "Compare virtual clusters: the quotas differ from what people need.",
                ),
                _of_attempts(
                    "Queue, 95 %", "queue", "0.95", "Nineteen of twenty attempts wait less.",
                    "Far above the median: large gangs wait. See Scheduler for whole free cells.",
                ),
                _of_attempts(
                    "Start, 95 %", "start", "0.95", "From an attempt's begin to its first task.",
                    "Far above the queue's time: agents start pods slowly.",
                ),
                _of_attempts(
                    "Run, median", "run", "0.5", "From the first task's start to the end.",
                    "Very short runs: programs fail at their start.",
                ),
            ),
        ),
    ),
)  # fmt: skip

NODES = Dashboard(
    title="Node",
    uid="muster-node",
    tells="Each chosen node.",
    variables=(NODE,),
    rows=(
        *_node_rows(OF_NODE, "by (node_name) "),
        Row(
            "Pods",
            (
                Panel(
                    "Load", "short", f"muster_agent_node_load1{{{OF_NODE}}}",
                    "Processes that run or want to, over a minute.",
                    "Far above the number of processors: tasks start too many threads.",
                    "{{node_name}}",
                ),
                Panel(
                    "Pods", "none", 'sum by (node, phase) (muster_agent_pods{node=~"$node"})',
                    "Live pods by phase.", "Pods that stay `accepted`: read the agent's log.",
                    "{{node}} {{phase}}", "stack",
                ),
                Panel(
                    "Unhealthy GPUs", "none", 'muster_agent_gpus_unhealthy{node=~"$node"}',
                    "GPUs that get no new pods.", "`muster nodes` has the reason.", "{{node}}",
                ),
                Panel(
                    "Logs", "bytes", 'muster_agent_log_bytes{node=~"$node"}',
                    "Bytes of all logs of pods.", "See `MUSTER_LOGS_MAX_MB`.", "{{node}}",
                ),
            ),
        ),
    ),
)  # fmt: skip


def _of_gpu(metric: str, title: str, unit: str, tells: str, action: str) -> Panel:
    legend = "{{node_name}} {{minor_number}}"
    return Panel(title, unit, f"{metric}{{{OF_GPU}}}", tells, action, legend)


def _rate_of_gpu(metric: str, title: str, unit: str, tells: str, action: str) -> Panel:
    legend = "{{node_name}} {{minor_number}}"
    return Panel(title, unit, f"rate({metric}{{{OF_GPU}}}{RATE})", tells, action, legend)


def _in_node(query: str, title: str, unit: str, tells: str, action: str) -> Panel:
    legend = "{{job_name}} {{role_name}} {{task_index}}"
    return Panel(title, unit, query, tells, action, legend)


IN_NODE = Dashboard(
    title="GPUs and tasks in a node",
    uid="muster-in-node",
    tells="Each GPU of a node, and each task on it.",
    variables=(NODE, GPU),
    rows=(
        Row(
            "GPUs",
            (
                _of_gpu(
                    "gpu_utilization", "Utilisation", "percent",
                    "Percent of time in which a kernel ran.",
                    "One GPU far below the others of its job: a straggler or a lost process.",
                ),
                _of_gpu(
                    "gpu_mem_utilization", "Memory", "percent", "Used GPU memory.",
                    "Used without a task: see the processes that are no task's.",
                ),
                _of_gpu(
                    "DCGM_FI_PROF_SM_ACTIVE", "Multiprocessors", "percentunit",
                    "Share of multiprocessors at work; from Hopper on.",
                    "Low with high utilisation: kernels are too small.",
                ),
                _of_gpu(
                    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Tensor cores", "percentunit",
                    "Share of time of the tensor cores; from Hopper on.",
                    "Low in training: check the precision and the sizes of matrices.",
                ),
                _of_gpu(
                    "DCGM_FI_DEV_GPU_TEMP", "Temperature", "celsius", "Degrees of the GPU.",
                    "Above 85: look at the cooling; the clocks soon drop.",
                ),
                _of_gpu(
                    "DCGM_FI_DEV_POWER_USAGE", "Power", "watt", "Watts.",
                    "At the limit with low clocks: the power limit slows the job.",
                ),
                _of_gpu(
                    "DCGM_FI_DEV_SM_CLOCK", "Clock", "rotmhz", "MHz of the multiprocessors.",
                    "Low under load: see the reasons in NVML's bits.",
                ),
                _of_gpu(
                    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Reasons of low clocks", "none",
                    "NVML's bits; 1: idle, 4: power limit, 8 and above: hardware.",
                    "64 or 128: heat or power brake. Drain the node and look at it.",
                ),
                _rate_of_gpu(
                    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "NVLink", "Bps",
                    "Bytes a second over all NVLinks, both ways; no series without NVLink.",
                    "0 in a job of several GPUs: it communicates over PCIe.",
                ),
            ),
        ),
        Row(
            "Errors of GPUs",
            (
                _of_gpu(
                    "DCGM_FI_DEV_XID_ERRORS", "Last Xid", "none", "0: none.",
                    "`dmesg` on the node has the details.",
                ),
                Panel(
                    "ECC errors", "none",
                    "sum by (node_name, minor_number, type)"
                    f" (nvidiasmi_ecc_error_count{{{OF_GPU}}})",
                    "Memory errors. `volatile`: since the driver was loaded; `double`: not"
                    " corrected.",
                    "Any uncorrected one: drain the node and reset the GPU.",
                    "{{node_name}} {{minor_number}} {{type}}",
                ),
                _of_gpu(
                    "DCGM_FI_DEV_ROW_REMAP_PENDING", "Rows to remap", "none",
                    "1: memory rows are remapped by the next reset.",
                    "Drain the node, reset the GPU.",
                ),
                _rate_of_gpu(
                    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe repeats", "cps",
                    "Repeated transfers a second.", "Rising: seat the card anew, or replace it.",
                ),
            ),
        ),
        Row(
            "Tasks",
            (
                _in_node(
                    'task_cpu_percent{node=~"$node"}', "CPU of tasks", "percent",
                    "100: one processor.", "Far above what the task asked for: it slows others.",
                ),
                _in_node(
                    'task_mem_usage_byte{node=~"$node"}', "Memory of tasks", "bytes",
                    "Without what the kernel can drop.", "Near the limit: the task soon fails.",
                ),
                _in_node(
                    'avg by (job_name, role_name, task_index) (task_gpu_percent{node=~"$node"})',
                    "GPUs of tasks", "percent", "Mean utilisation of each task's GPUs.",
                    "0 for an hour: ask the owner, who sees it in the dashboard Job.",
                ),
            ),
        ),
    ),
)  # fmt: skip


def _of_tasks(title: str, tells: str, where: str, by: str, more: str) -> Dashboard:
    """OpenPAI's six panels of a job, of one of its task roles or of one task."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    variables = (CLUSTER_OF_JOBS, JOB, *((ROLE,) if "$role" in where else ()))
    if "$task" in where:
        variables = (*variables, TASK)

    def panel(name: str, unit: str, query: str, tells: str, action: str) -> Panel:
        return Panel(name, unit, query, tells, action, legend)

    def summed(metric: str) -> str:
        return f"sum by ({by}) ({metric}{{{where}}})"

    def rated(metric: str) -> str:
        return f"sum by ({by}) (rate({metric}{{{where}}}{RATE}))"

    return Dashboard(
        title=title,
        uid=f"muster-{title.lower().replace(' ', '-')}",
        tells=tells,
        variables=variables,
        rows=(
            Row(
                "GPUs",
                (
                    panel(
                        "GPU utilisation", "percent",
                        f"avg by ({by}{more}) (task_gpu_percent{{{where}}})",
                        "Percent of time in which a kernel ran.",
                        "Low: profile the input, then the size of a batch.",
                    ),
                    panel(
                        "GPU memory", "percent",
                        f"avg by ({by}{more}) (task_gpu_mem_percent{{{where}}})",
                        "Used GPU memory.", "Low: a larger batch fits.",
                    ),
                ),
            ),
            Row(
                "CPU, memory, disks, network",
                (
                    panel(
                        "CPU", "percent", summed("task_cpu_percent"), "100: one processor.",
                        "At what was asked for, with idle GPUs: ask for more CPUs.",
                    ),
                    panel(
                        "Memory", "bytes", summed("task_mem_usage_byte"),
                        "Without what the kernel can drop.",
                        "Near the limit: ask for more `memoryMB`.",
                    ),
                    panel(
                        "Memory of the limit", "percent",
                        f"max by ({by}) (task_mem_usage_percent{{{where}}})",
                        "The fullest task's memory, in percent of what it asked for.",
                        "Near 100: the task soon fails.",
                    ),
                    panel(
                        "Disk reads", "Bps", rated("task_block_in_byte"), "Bytes a second.",
                        "High with idle GPUs: the input waits for disks.",
                    ),
                    panel(
                        "Disk writes", "Bps", rated("task_block_out_byte"), "Bytes a second.",
                        "High for long: checkpoints are too frequent.",
                    ),
                    panel(
                        "Network in", "Bps", rated("task_net_in_byte"),
                        "Bytes a second; only of tasks with a network of their own.",
                        "Compare tasks: one with less than the others is a straggler.",
                    ),
                    panel(
                        "Network out", "Bps", rated("task_net_out_byte"),
                        "Bytes a second; only of tasks with a network of their own.",
                        "Compare tasks: one with less than the others is a straggler.",
                    ),
                ),
            ),
        ),
    )  # fmt: skip


OF_A_JOB = _of_tasks("Job", "One job, by task role.", OF_JOB, "role_name", "")
OF_A_ROLE = _of_tasks("Task role", "A task role of a job, by task.", OF_ROLE, "task_index", "")
OF_A_TASK = _of_tasks(
    "Task", "One task; its GPUs by number.", OF_TASK, "task_index", ", minor_number"
)

ENDS = 'rule!~"succeeded|stopped|completed|never-ran|preempted|withdrawn|over"'
"""Of the ends of pods those that are failures: nobody has asked for them."""

HEALTH = Dashboard(
    title="Health",
    uid="muster-health",
    tells="Which nodes and GPUs fail, and how often.",
    rows=(
        Row(
            "Nodes",
            (
                _value(
                    "Mean time between losses of a node", "s",
                    'max(avg_over_time(muster_scheduler_nodes{state="alive"}[$__range]))'
                    " * $__range_s"
                    " / clamp_min(sum(increase(muster_scheduler_nodes_lost_total[$__range])), 1)",
                    "Time of all alive nodes, divided by lost nodes; with none lost, by 1.",
                    "Choose a range of weeks. Compare it with the length of your jobs.",
                ),
                _value(
                    "Nodes lost", "none",
                    "sum(increase(muster_scheduler_nodes_lost_total[$__range]))",
                    "Nodes declared lost in the range.", "Lemon nodes are below.",
                ),
                _value(
                    "Nodes withheld", "none", "max(muster_scheduler_nodes_withheld)",
                    "Silent nodes that are not declared lost: too many fell silent together.",
                    "Repair the network or the bus.",
                ),
                _value(
                    "Unhealthy GPUs", "none", "sum(muster_agent_gpus_unhealthy)",
                    "GPUs that get no new pods.", "`muster nodes` has the reasons.",
                ),
                Panel(
                    "Nodes by state", "none", "max by (state) (muster_scheduler_nodes)",
                    "A node is `alive`, `unhealthy`, `stopping`, `lost` or `unknown`.",
                    "`muster nodes` has each node's reason.", "{{state}}", "stack",
                ),
                Panel(
                    "Lemon nodes", "none",
                    f"topk(10, sum by (node) (increase(muster_agent_pods_ended_total{{{ENDS}}}"
                    "[$__range])))",
                    "The ten nodes on which most pods failed in the range.",
                    "One node far above the others: drain it, and test its GPUs.",
                    shape="table",
                ),
                Panel(
                    "Why pods failed", "none",
                    f"topk(10, sum by (rule) (increase(muster_agent_pods_ended_total{{{ENDS}}}"
                    "[$__range])))",
                    "Failed pods in the range, by the rule of their verdict.",
                    "`supervisor-lost`, `node-rebooted`, `launch-failed`, `cuda-ecc` are the"
                    " platform's.",
                    shape="table",
                ),
                Panel(
                    "GPU driver", "none", "min by (node) (muster_agent_gpu_driver_up)",
                    "0: the driver did not answer the last look.",
                    "`nvidia-smi` on the node; if it hangs, reboot.", "{{node}}",
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                Panel(
                    "Xids", "none",
                    "sum by (node, tier) (increase(muster_agent_gpu_xids_total[$__range]))",
                    "Xids in the range, by tier: `fatal` made the GPU unhealthy.",
                    "Fatal ones: drain the node, reset the GPU. Xid 45 is noise after a stop.",
                    "{{node}} {{tier}}",
                ),
                Panel(
                    "Unhealthy GPUs", "none", "sum by (node) (muster_agent_gpus_unhealthy)",
                    "GPUs that get no new pods.", "`muster nodes` has the reasons.", "{{node}}",
                    "stack",
                ),
                Panel(
                    "Uncorrected memory errors", "none",
                    f"sum by (node_name, minor_number) (DCGM_FI_DEV_ECC_DBE_AGG_TOTAL{OWN})",
                    "Errors that ECC could not correct, ever.",
                    "A rise: drain the node, reset the GPU; again: replace it.",
                    "{{node_name}} {{minor_number}}",
                ),
                Panel(
                    "Hottest GPUs", "celsius", f"topk(10, DCGM_FI_DEV_GPU_TEMP{OWN})",
                    "The ten hottest GPUs.", "Above 85: look at the cooling.",
                    "{{node_name}} {{minor_number}}",
                ),
            ),
        ),
    ),
)  # fmt: skip

SCHEDULER = Dashboard(
    title="Scheduler",
    uid="muster-scheduler",
    tells="Whether the Scheduler decides quickly, and why gangs wait.",
    rows=(
        Row(
            "Decisions",
            (
                Panel(
                    "Decisions", "ops",
                    f"sum by (decision) (rate(muster_scheduler_decisions_total{RATE}))",
                    "Decisions about gangs a second, by kind.",
                    "Many preemptions: compare the quotas with what people ask for.",
                    "{{decision}}", "stack",
                ),
                Panel(
                    "First answer, 95 %", "s", _p95("muster_job_answer_seconds"),
                    "From a job attempt's begin to a placement or a reason, over the bus.",
                    "Above 1 s: see the cycle, then the lag in Bus.", "95 %",
                ),
                Panel(
                    "Cycle, 95 %", "s", _p95("muster_scheduler_cycle_seconds"),
                    "One cycle with its transaction.",
                    "Far above the core's own time: the database is slow.", "95 %",
                ),
                Panel(
                    "Core, 95 %", "s", _p95("muster_scheduler_core_seconds"),
                    "The decisions of one cycle alone.",
                    "Above 0.5 s: give the leader a faster CPU, and report the cluster's size.",
                    "95 %",
                ),
                Panel(
                    "Interrupted cycles", "ops",
                    f"sum(rate(muster_scheduler_cycle_parts_total{RATE}))",
                    "Cycles that reached their bound and went on in the next transaction.",
                    "All the time: the queue is longer than one cycle's bound.", "parts",
                ),
                Panel(
                    "Leaders", "none", "sum(muster_scheduler_is_leader)",
                    "Processes that lead: 1.", "0: see the Scheduler's runbook.", "leaders",
                ),
            ),
        ),
        Row(
            "Waits",
            (
                Panel(
                    "Waiting GPUs by reason", "none",
                    "sum by (reason) (max by (virtual_cluster, reason)"
                    " (muster_scheduler_waiting_gpus))",
                    "GPUs that waiting gangs ask for.", "`muster why JOB` explains each.",
                    "{{reason}}", "stack",
                ),
                Panel(
                    "Waiting gangs", "none", "max(muster_scheduler_waiting_gangs)",
                    "Gangs without a placement.", "See the reasons.", "waiting",
                ),
                Panel(
                    "Preempted gangs", "none",
                    "max(muster_scheduler_preempted_gangs)",
                    "Preempted gangs that still hold pods.",
                    "Past their deadline: see `muster_scheduler_overdue_gangs`.", "preempted",
                ),
                Panel(
                    "Nominated gangs", "none", "max(muster_scheduler_nominated_gangs)",
                    "Gangs that wait for preempted gangs to end.",
                    "For minutes: pods do not stop. Look at their agents.", "nominated",
                ),
                Panel(
                    "Requeued gangs", "ops",
                    "sum by (virtual_cluster) (rate(muster_scheduler_requeued_gangs_total"
                    f"{RATE}))",
                    "Attempts that failures or drains ended. Cells are reserved for the next.",
                    "Rising: see Health.", "{{virtual_cluster}}",
                ),
            ),
        ),
        Row(
            "Free cells",
            (
                Panel(
                    "Idle blocks by size", "none",
                    "max by (chain, cell) (muster_scheduler_free_cells)",
                    "Wholly free cells, by type.",
                    "No large ones while large gangs wait: small jobs are spread too widely.",
                    "{{chain}} {{cell}}",
                ),
                Panel(
                    "Fragmentation", "percentunit",
                    "max by (chain, cell) (muster_scheduler_fragmentation)",
                    "Share of free GPUs outside wholly free cells of this type.",
                    "Near 1: large gangs wait though GPUs are free.", "{{chain}} {{cell}}",
                ),
                Panel(
                    "Drifted gangs", "none", "max(muster_scheduler_drifted_gangs)",
                    "Gangs whose accounting differs from their placements.",
                    "Above 0: a bug; see the rule SchedulerAccountingDrift.", "gangs",
                ),
            ),
        ),
    ),
)  # fmt: skip

EFFICIENCY = Dashboard(
    title="Efficiency",
    uid="muster-efficiency",
    tells="Allocated GPUs, and how much of them is used.",
    rows=(
        Row(
            "Cluster",
            (
                Panel(
                    "Allocated share", "percentunit",
                    '1 - max(muster_scheduler_gpus{state="free"})'
                    ' / max(muster_scheduler_gpus{state="healthy"})',
                    "Share of the healthy GPUs that gangs have.",
                    "Low while gangs wait: see the reasons in Scheduler.", "allocated",
                ),
                Panel(
                    "Used share of allocated GPUs", "percent", "avg(task_gpu_percent)",
                    "Mean utilisation of the GPUs that tasks have.",
                    "Low: talk to the owners of the jobs below.", "used",
                ),
                Panel(
                    "Power", "watt", f"sum(DCGM_FI_DEV_POWER_USAGE{OWN})", "Watts of all GPUs.",
                    "Multiply by the price for what idle jobs cost.", "all",
                ),
            ),
        ),
        Row(
            "Jobs and users",
            (
                Panel(
                    "Least used jobs", "percent",
                    "bottomk(10, avg by (username, job_name)"
                    " (avg_over_time(task_gpu_percent[$__range])))",
                    "The ten jobs with the lowest mean utilisation in the range.",
                    "Below 5 % for an hour: ask the owner, or stop the job.", shape="table",
                ),
                Panel(
                    "Users", "percent",
                    "avg by (username) (avg_over_time(task_gpu_percent[$__range]))",
                    "Mean utilisation of each user's GPUs in the range.",
                    "Compare users with the same work.", shape="table",
                ),
                Panel(
                    "Virtual clusters", "percent",
                    "avg by (virtual_cluster) (task_gpu_percent)",
                    "Mean utilisation of each virtual cluster's GPUs.",
                    "Low with a full quota: more quota helps nobody.", "{{virtual_cluster}}",
                ),
                Panel(
                    "Tensor cores", "percentunit",
                    "bottomk(10, avg by (job_name)"
                    f' (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{job_name!="", {OF_OWN_NODES}}}))',
                    "The ten jobs that use tensor cores least; from Hopper on.",
                    "Near 0 in training: check the precision.", "{{job_name}}",
                ),
                Panel(
                    "Unused memory", "bytes",
                    "topk(10, sum by (job_name) (task_mem_limit_byte - task_mem_usage_byte))",
                    "The ten jobs that ask for most memory beyond what they use.",
                    "They could ask for less, so that others fit beside them.", "{{job_name}}",
                ),
            ),
        ),
    ),
)  # fmt: skip

BUS = Dashboard(
    title="Bus and services",
    uid="muster-bus",
    tells="Whether messages flow, and what the services' processes need.",
    rows=(
        Row(
            "Messages",
            (
                Panel(
                    "Lag, 95 %", "s", _p95("muster_record_lag_seconds", "le, service, topic"),
                    "From a record's event time until its reader has handled it.",
                    "Grows: the reader is too slow. See its batches and the database.",
                    "{{service}} {{topic}}",
                ),
                Panel(
                    "Received", "cps",
                    f"sum by (service) (rate(muster_records_received_total{RATE}))",
                    "Records a second, by reader.", "0 for all: the bus is away.", "{{service}}",
                ),
                Panel(
                    "Published", "cps",
                    f"sum by (service) (rate(muster_records_published_total{RATE}))",
                    "Records a second, by sender.", "Rises at rest: see the repeats.",
                    "{{service}}",
                ),
                Panel(
                    "Repeats", "cps",
                    f"sum by (service) (rate(muster_messages_republished_total{RATE}))",
                    "State messages that are published again.",
                    "For long: the other side is away or does not acknowledge.", "{{service}}",
                ),
                Panel(
                    "Unacknowledged messages", "none",
                    "sum by (service) (muster_unacknowledged_messages)",
                    "State messages that the other side has not acknowledged.",
                    "Grows: look at the other side.", "{{service}}",
                ),
                Panel(
                    "Dead letters", "cps",
                    f"sum by (service, topic) (rate(muster_dead_letters_total{RATE}))",
                    "Records that a reader rejected, a second.",
                    "Read `<topic>.dead-letter`, fix the cause, `muster events redrive`.",
                    "{{service}} {{topic}}",
                ),
                Panel(
                    "Batch, 95 %", "s", _p95("muster_batch_seconds", "le, service"),
                    "One batch with its transaction.", "Large: the database is slow.",
                    "{{service}}",
                ),
                Panel(
                    "Bus reachable", "none", "min by (service) (muster_bus_up)",
                    "1: the bus answers this service.", "0: restore the broker.", "{{service}}",
                ),
            ),
        ),
        Row(
            "Notifications",
            (
                Panel(
                    "Delivery attempts", "cps",
                    f"sum by (channel, result) (rate(muster_alerting_attempts_total{RATE}))",
                    "Attempts a second, by what came of them.",
                    "Failures: Alerting's runbook names the receivers.",
                    "{{channel}} {{result}}", "stack",
                ),
                Panel(
                    "First attempt, 95 %", "s",
                    _p95("muster_alerting_first_attempt_seconds", "le, channel"),
                    "From an event to the first attempt at its receiver.",
                    "Above 5 s: Alerting is behind.", "{{channel}}",
                ),
                Panel(
                    "Waiting deliveries", "none",
                    "sum by (channel) (muster_alerting_deliveries_waiting)",
                    "Deliveries that wait for an attempt.", "Grows: receivers are away.",
                    "{{channel}}",
                ),
            ),
        ),
        Row(
            "Requests and processes",
            (
                Panel(
                    "Requests, 95 %", "s", _p95("muster_rest_request_seconds", "le, route"),
                    "REST's answers, by route.", "See the database, then the CPU.", "{{route}}",
                ),
                Panel(
                    "CPU of services", "percentunit",
                    f"sum by (service) (rate(process_cpu_seconds_total{OF_PROCESSES}{RATE}))",
                    "1: one processor.", "Near 1: the service needs more, or a replica.",
                    "{{service}}",
                ),
                Panel(
                    "Memory of services", "bytes",
                    f"max by (service) (process_resident_memory_bytes{OF_PROCESSES})",
                    "Resident memory of the largest process.",
                    "Grows for days: report it with the service's log.", "{{service}}",
                ),
                Panel(
                    "Open files", "none", f"max by (service) (process_open_fds{OF_PROCESSES})",
                    "Files and connections.", "Near the limit: raise `LimitNOFILE`.",
                    "{{service}}",
                ),
            ),
        ),
    ),
)  # fmt: skip


def _of_objective(objective: Objective) -> Row:
    return Row(
        objective.title,
        (
            _value(
                "Kept", "percentunit", objective.share("$__range"),
                f"Share in the range; the promise is {objective.target:.3%}.", objective.action,
            ),
            _value(
                "Budget left", "percentunit",
                f"1 - {objective.burn_rate('$__range')}",
                "Share of the allowed failures in the range that is left.",
                "Below 0: the promise is broken.",
            ),
            Panel(
                "Burn rate", "none", objective.burn_rate("1h"),
                "1: failures use up just what is allowed. Alerts fire at 14.4, 6 and 1.",
                objective.action, "1 h",
            ),
        ),
    )  # fmt: skip


PROMISES = Dashboard(
    title="Promises",
    uid="muster-promises",
    tells="Muster's own objectives: what was promised, what is kept, and the error budget.",
    rows=tuple(_of_objective(each) for each in OBJECTIVES),
)

DASHBOARDS = (
    CLUSTER, VIRTUAL_CLUSTERS, NODES, IN_NODE, OF_A_JOB, OF_A_ROLE, OF_A_TASK,
    HEALTH, SCHEDULER, EFFICIENCY, BUS, PROMISES,
)  # fmt: skip
