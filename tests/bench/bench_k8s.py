"""`make bench-k8s`: how fast Muster binds pods on a large Kubernetes cluster, beside the machine's
own ceiling in the same run.

The control plane is real, KWOK plays the nodes, and one process plays their agents (`fleet`). A pod
is bound when the API server has answered its creation with the node in it. The ceiling is what the
same client, with the same number of requests in flight, creates of the same objects alone. Nothing
is asserted: figures are printed, and kept in docs/performance.md.
"""

import argparse
import asyncio
import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "deploy" / "images"))
import psutil
import uvloop
from agent_calls import AgentCalls
from cli.deploy.cluster_file import cluster_file
from cli.embedded.process import dying_with_me, end
from fleet import IN_FLIGHT, BoundedApi, Connections, Plan
from kube_muster import grant
from kube_plane import Json, KubePart, KubePlane
from kwok import agent_tokens, kwok, make_nodes
from meter import loop_ns, quantile
from muster.contracts.pods import PodRun, RoleShape
from muster_up import Http, Up, up
from rich.console import Console
from rich.table import Table
from runtime_agent.domain.kubernetes.manifest import Given, Identity, PodRules, manifest
from runtime_agent.domain.pods import Phase, Pod

NAMESPACE = "muster-jobs-host"
VOLCANO_PER_S = 66
CEILING_SHARE, CALLS_AIM = 0.8, 2.1
START_S, BIND_S, GONE_S, STOP_S = 600.0, 1800.0, 1800.0, 30.0
CLIENTS = 16
LEASE_S = "600"
"""No node is lost on a machine that is too small for a thousand agents."""
WARM_UP = 200
"""Pods, before the first ceiling; a new API server is slow."""
LOOK_S = 0.5

NAMES = {"database": "PostgreSQL", "kafka": "bus (embedded broker)"}

JOB = """protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: i, uri: registry.example/an/image:1}}]
taskRoles:
  worker:
    instances: {pods}
    dockerImage: i
    resourcePerInstance: {{cpu: 1, memoryMB: 1024, gpu: {gpus}}}
    commands: ["true"]
"""

console = Console()


@dataclass(frozen=True)
class Load:
    """Gangs that are submitted at once."""

    name: str
    gangs: int
    pods: int
    gpus: int

    @property
    def total(self) -> int:
        """Pods of all gangs."""
        return self.gangs * self.pods

    def __str__(self) -> str:
        return f"{self.gangs} gangs of {self.pods} pods of {self.gpus} GPUs"


@dataclass
class Usage:
    """CPU and memory of parts, by name."""

    processes: Mapping[str, psutil.Process]
    began: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Count CPU time from here."""
        self.began = {name: _used(each)[0] for name, each in self.processes.items()}

    def now(self) -> dict[str, tuple[float, float]]:
        """CPU seconds since then, and memory in MB."""
        used = {name: _used(each) for name, each in self.processes.items()}
        return {name: (cpu_s - self.began[name], mb) for name, (cpu_s, mb) in used.items()}


def _used(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds and MB, with those of children, unless it is this process. The processes of a
    database share memory, so each counts its share.
    """
    with suppress(psutil.NoSuchProcess):
        times, memory = process.cpu_times(), process.memory_full_info().pss / 2**20
        cpu_s = times.user + times.system
        if process.pid == os.getpid():
            return float(cpu_s), float(memory)
        below = [_used(child) for child in process.children()]
        cpu_s += times.children_user + times.children_system + sum(each[0] for each in below)
        return float(cpu_s), float(memory + sum(each[1] for each in below))
    return 0.0, 0.0


@dataclass(frozen=True)
class Bound:
    """How pods were bound. `took_s`: from the first request to the last bound pod; `usage`: CPU
    seconds meanwhile, and MB at the end.
    """

    pods: int
    took_s: float
    usage: Mapping[str, tuple[float, float]]

    @property
    def per_s(self) -> float:
        """Pods."""
        return self.pods / self.took_s

    @property
    def cpu_ms(self) -> float:
        """Of all parts, a pod."""
        return self._ms(sum(cpu_s for cpu_s, _ in self.usage.values()))

    def used(self, part: str) -> str:
        """CPU ms a pod and MB of a part."""
        if part not in self.usage:
            return ""
        cpu_s, memory_mb = self.usage[part]
        return f"{self._ms(cpu_s):.2f} ms · {memory_mb:.0f} MB"

    def _ms(self, cpu_s: float) -> float:
        return cpu_s / self.pods * 1000


@dataclass(frozen=True)
class Outcome:
    """How a load went. `half_s`: until half of the pods were bound; `deleted_s`: from the stop
    until no object was left.
    """

    load: Load
    bound: Bound
    half_s: float
    calls: Mapping[str, int]
    calls_about_pods: int
    refused: Mapping[int, int]
    deleted_s: float


def _ceilings_pod(node: str, number: int) -> Json:
    shape = RoleShape(
        name="worker", instances=8, gpus=1, cpu=1, memory_mb=1024, min_failed_instances=1,
        min_succeeded_instances=-1,
    )  # fmt: skip
    run = PodRun(
        user="u", user_number=7, job_name="u~j", virtual_cluster="default", role="worker", index=0,
        job_attempt=0, task_attempt=0, image="registry.example/an/image:1", command="true", cpu=1,
        memory_mb=1024, roles=(shape,), peers=(), gpus=(0,),
    )  # fmt: skip
    job = f"{number:026d}"
    pod = Pod(f"{job}-0-worker-0-0", job, f"{job}-0", Phase.ACCEPTED, run)
    who = Identity(node, "a" * 16, "b" * 32, "c" * 64)
    rules = PodRules("muster-jobs", NAMESPACE, "muster-step", 8084, 30.0)
    return manifest(pod, run, who, rules, Given())


async def ceiling(
    plane: KubePlane, plan: Plan, calls: AgentCalls, usage: Usage, pods: int
) -> Bound:
    """What the machine takes when nothing decides about pods."""
    connections = Connections(plan)
    nodes = [connections.of(node) for node in plan.tokens]
    numbers, made = iter(range(pods)), list[tuple[BoundedApi, Json]]()

    async def create() -> None:
        for number in numbers:
            api = nodes[number % len(nodes)]
            body = await api.create(_ceilings_pod(api.node, number))
            made.append((api, body["metadata"]))

    async def delete() -> None:
        while made:
            api, about = made.pop()
            await api.delete(NAMESPACE, about["name"], about["uid"], 0)

    try:
        await _in_flight(lambda: nodes[0].read(NAMESPACE, "none"))  # opens the connections
        calls.begin()
        usage.begin()
        started = time.time()
        await _in_flight(create)
        await _until_bound(calls, pods)
        bound = Bound(pods, calls.last_s - started, usage.now())
        await _in_flight(delete)
        await _until_gone(plane)
    finally:
        await connections.close()
    return bound


async def _in_flight(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())


async def _until_bound(calls: AgentCalls, pods: int) -> None:
    async with asyncio.timeout(BIND_S):
        while calls.look() < pods:
            await asyncio.sleep(LOOK_S)


async def _until_gone(plane: KubePlane) -> None:
    async with asyncio.timeout(GONE_S):
        while True:
            status, answer = plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1")
            if status == http.client.OK and not answer["items"]:
                return
            await asyncio.sleep(LOOK_S)


async def bind(
    load: Load, http_to: Http, plane: KubePlane, calls: AgentCalls, usage: Usage
) -> Outcome:
    """Submit a load, wait until it is bound, stop it, and wait until it is gone."""
    names = [f"{load.name}-{number}" for number in range(load.gangs)]

    async def every(ask: Callable[[str], tuple[Any, ...]]) -> None:
        left = iter(names)

        async def client() -> None:
            for name in left:
                answer = await http_to.call(*ask(name))
                if answer.status != http.client.ACCEPTED:
                    raise RuntimeError(f"{answer.status}: {answer.body.decode()}")

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())

    calls.begin()
    usage.begin()
    started = time.time()

    def file(name: str) -> bytes:
        return JOB.format(name=name, pods=load.pods, gpus=load.gpus).encode()

    async with asyncio.TaskGroup() as group:
        group.create_task(every(lambda n: ("POST", "/api/v2/jobs", file(n), "text/yaml")))
        group.create_task(_until_bound(calls, load.total))
    bound = Bound(load.total, calls.last_s - started, usage.now())
    half_s = quantile(sorted(calls.bound_at.values()), 0.5) - started
    stopping = time.monotonic()
    stop = json.dumps({"value": "STOP"}).encode()
    await every(lambda n: ("PUT", f"/api/v2/jobs/admin~{n}/executionType", stop))
    await _until_gone(plane)
    deleted_s = time.monotonic() - stopping
    calls.look()
    made, about_pods, refused = dict(calls.by_verb), calls.about_pods, dict(calls.refused)
    return Outcome(load, bound, half_s, made, about_pods, refused, deleted_s)


@contextmanager
def fleet(plan: Plan, log: Path) -> Iterator[psutil.Process]:
    """The agents."""
    file = Path(plan.home) / "plan.json"
    plan.write(file)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("fleet.py"), file],
            stdout=output,
            stderr=output,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        end(process, signal.SIGKILL, STOP_S)


async def _until_free(one: Up, gpus: int, agents: psutil.Process) -> None:
    """The Scheduler knows all nodes, and that nothing runs there."""
    address = one.status()["services"]["scheduler"]["address"]
    scheduler = Http(int(address.rpartition(":")[2]), connections=1)
    async with asyncio.timeout(START_S):
        while True:
            metrics = (await scheduler.call("GET", "/metrics")).body.decode()
            free = 'muster_scheduler_gpus{state="free"} '
            found = [line for line in metrics.splitlines() if line.startswith(free)]
            if found and float(found[0].removeprefix(free)) == gpus:
                break
            if agents.status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError("the fleet has ended")
            await asyncio.sleep(1)
    await scheduler.close()


def _of_plane(plane: KubePlane, player: KubePart) -> dict[str, psutil.Process]:
    parts = {part.name: psutil.Process(part.pid) for part in (*plane.parts, player)}
    return {**parts, "this client": psutil.Process()}


def _of_muster(one: Up, agents: psutil.Process) -> dict[str, psutil.Process]:
    services = one.status()["services"]
    pids = {name: part["pid"] for name, part in services.items() if name != "runtime-agent"}
    parts = {NAMES.get(name, name): psutil.Process(pid) for name, pid in pids.items()}
    return {**parts, "all agents (the fleet)": agents}


def figures(ceilings: list[Bound], outcomes: list[Outcome]) -> Iterator[Table]:
    """The result, and what each part has used."""
    top = max(ceilings, key=lambda each: each.per_s)
    table = Table("measured", *(str(each.load) for each in outcomes), "aim")

    def row(what: str, of: Callable[[Outcome], str], aim: str = "") -> None:
        table.add_row(what, *map(of, outcomes), aim)

    row("pods bound", lambda each: f"{each.bound.per_s:.0f}/s", f"≥ {3 * VOLCANO_PER_S}/s")
    row("  of them, after", lambda each: f"{each.bound.pods}, {each.bound.took_s:.1f} s")
    row("  half of them after", lambda each: f"{each.half_s:.1f} s")
    row(
        f"beside the ceiling ({' and '.join(f'{each.per_s:.0f}' for each in ceilings)}/s)",
        lambda each: f"{each.bound.per_s / top.per_s:.0%}",
        f"≥ {CEILING_SHARE:.0%}",
    )
    row(
        f"beside Volcano ({VOLCANO_PER_S}/s in the literature, not measured here)",
        lambda each: f"{each.bound.per_s / VOLCANO_PER_S:.1f} ×",
        "≥ 3 ×",
    )
    row(
        "agents' API calls a pod",
        lambda each: f"{each.calls_about_pods / each.load.total:.2f}",
        f"≤ {CALLS_AIM}",
    )
    row(
        "  all calls of agents",
        lambda each: ", ".join(f"{what} {n}" for what, n in sorted(each.calls.items())),
    )
    row(
        "  of them refused",
        lambda each: ", ".join(f"{code}: {n}" for code, n in each.refused.items()) or "none",
    )
    row("stop → no object left", lambda each: f"{each.deleted_s:.1f} s")
    yield table
    every = [top, *(each.bound for each in outcomes)]
    used = Table("CPU a pod, memory", "ceiling", *(each.load.name for each in outcomes))
    for part in every[-1].usage:
        used.add_row(part, *(each.used(part) for each in every))
    used.add_row("all CPU", *(f"{each.cpu_ms:.2f} ms" for each in every))
    yield used


def _cluster(nodes: list[Json]) -> Json:
    """The cluster file that the nodes' labels make, with one virtual cluster."""
    content = cluster_file(nodes)
    racks = [cell["type"] for cell in content["physicalCells"]]
    quota = {"type": racks[0], "count": len(racks)}
    return {**content, "virtualClusters": {"default": {"cells": [quota]}}}


async def run(given: argparse.Namespace, home: Path) -> None:
    """One run."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    small = Load("small", given.gangs, 8, 1)
    large = Load("large", given.large_gangs, 8, given.gpus)
    with KubePlane(home / "plane") as plane, kwok(plane) as player:
        grant(plane)
        began = time.monotonic()
        nodes = await make_nodes(plane, given.nodes, given.gpus)
        console.print(f"{len(nodes)} nodes ready after {time.monotonic() - began:.0f} s")
        tokens = await agent_tokens(plane, nodes)
        calls = AgentCalls(plane.audit_path)
        agents_home = home / "agents"
        agents_home.mkdir()
        plan = Plan(str(agents_home), plane.url, str(plane.ca_path), "", given.gpus, tokens)
        below = _of_plane(plane, player)
        await ceiling(plane, plan, calls, Usage(below), WARM_UP)
        ceilings = [await ceiling(plane, plan, calls, Usage(below), small.total)]
        console.print(f"ceiling: {ceilings[0].per_s:.0f} pods/s, {IN_FLIGHT} in flight")
        file = home / "cluster.json"
        file.write_text(json.dumps(_cluster(nodes)))
        settings = {
            "MUSTER_CLUSTER_FILE": str(file),
            "MUSTER_LEASE_TIMEOUT_S": LEASE_S,
            "MUSTER_RUNNER": "pretended",  # its own agent, which is not in the cluster
        }
        outcomes: list[Outcome] = []
        async with up(home / "muster", **settings) as (one, http_to):
            plan = Plan(**{**vars(plan), "bootstrap": one.status()["kafka"]})
            with fleet(plan, home / "fleet.log") as agents:
                began = time.monotonic()
                await _until_free(one, given.nodes * given.gpus, agents)
                console.print(f"all agents known after {time.monotonic() - began:.0f} s")
                usage = Usage({**_of_muster(one, agents), **below})
                for load in (small, large):
                    if load.gangs:
                        await _until_free(one, given.nodes * given.gpus, agents)
                        outcomes.append(await bind(load, http_to, plane, calls, usage))
                        console.print(f"{load}: {outcomes[-1].bound.per_s:.0f} pods/s")
        ceilings.append(await ceiling(plane, plan, calls, Usage(below), small.total))
    for table in figures(ceilings, outcomes):
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1_000, help="a multiple of 8")
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--gangs", type=int, default=500, help="of 8 pods of one GPU")
    parser.add_argument("--large-gangs", type=int, default=100, help="of 8 pods of a node's GPUs")
    parser.add_argument("--keep", type=Path, help="a new folder for logs, which stays")
    given = parser.parse_args()
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" plain loop {loop_ns():.0f} ns"
    )
    if given.keep is not None:
        given.keep.mkdir()
        uvloop.run(run(given, given.keep))
        return
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir="/dev/shm") as folder:
        uvloop.run(run(given, Path(folder)))


if __name__ == "__main__":
    main()
