"""What pods have used, as the agent keeps it and REST reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster.contracts.nodes import Gpu
from muster.contracts.pods import PodRun
from muster.metrics import PlumbingMetrics
from muster.service_keys import agent, make_token, service_key
from muster.token_guard import TokenGuard
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from runtime_agent import usage_watch
from runtime_agent.api.usage import usage_routes
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.domain.usage import SUMS, GpuUsage, Stretch, TaskUsage
from runtime_agent.usage_metrics import UsageMetrics
from runtime_agent.usage_store import KEPT_S, UsageStore
from runtime_agent.usage_watch import UsageWatch
from service_auth import CLUSTER_KEY
from starlette.applications import Starlette

NOW_S = 1_800_000_000.0


def a_pod(name: str, gpus: tuple[int, ...] = (), started_s: float | None = None) -> Pod:
    run = PodRun(
        user="ann", job_name="ann~train", virtual_cluster="vision", role="worker", index=0,
        job_attempt=0, task_attempt=0, command="true", gpus=gpus, cpu=1, memory_mb=1024, roles=(),
        peers=(),
    )  # fmt: skip
    started = None if started_s is None else datetime.fromtimestamp(started_s, UTC)
    return Pod(name, "job", "job-0", Phase.RUNNING, run, started_at=started)


class Looks:
    """A watch whose clock, pods and figures a test sets."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = NOW_S
        clock = SimpleNamespace(time=lambda: self.now_s, monotonic=lambda: self.now_s - NOW_S)
        monkeypatch.setattr(usage_watch, "time", clock)
        self.used: dict[str, TaskUsage] = {}
        self.store = UsageStore(home / "usage.sqlite")
        runner = cast("Any", SimpleNamespace(usage=lambda pod: self.used[pod.pod]))
        metrics = UsageMetrics(CollectorRegistry(), "node-a", 60.0, shows_jobs=True)
        self.watch = UsageWatch(home, runner, metrics, self.store)

    def look(
        self, after_s: float, *pods: tuple[Pod, TaskUsage], busy: Sequence[float] = ()
    ) -> None:
        self.now_s += after_s
        self.used = {pod.pod: used for pod, used in pods}
        gpus = [Gpu(index=n, uuid=f"GPU-{n}", model="m", memory_mb=1) for n in range(len(busy))]
        usage = {n: GpuUsage(busy=each, memory_used=100) for n, each in enumerate(busy)}
        self.watch.look(gpus, usage, {}, [pod for pod, _ in pods])

    def kept(self, step_s: float = KEPT_S) -> dict[str, list[Stretch]]:
        found: dict[str, list[Stretch]] = {}
        for each in self.store.of_job("job", NOW_S - KEPT_S, self.now_s, step_s):
            found.setdefault(each.pod, []).append(each)
        return found


def test_what_two_looks_differ_in_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(tmp_path, monkeypatch)
    old = a_pod("old", gpus=(0, 1))
    looks.look(0, (old, TaskUsage(cpu_s=100, memory=50, sent=7)), busy=(90, 0))
    assert looks.kept() == {}  # what it used before this agent looked is not known
    new = a_pod("new", started_s=NOW_S + 5)
    looks.look(15, (old, TaskUsage(cpu_s=130, memory=50, sent=9)),
               (new, TaskUsage(cpu_s=4, memory=10)), busy=(80, 0))  # fmt: skip
    assert looks.kept() == {
        "old": [Stretch("job", "old", NOW_S + 15, 15, 30, 750, 30, 12, 15, 3000, sent=2)],
        "new": [Stretch("job", "new", NOW_S + 15, 10, 4, 100)],
    }
    looks.look(15, (old, TaskUsage(cpu_s=120, memory=50, sent=9)), busy=(100, 100))
    [sums] = looks.kept()["old"]
    assert (sums.span_s, sums.cpu_s, sums.gpu_busy_s, sums.gpu_idle_s) == (30, 30, 42, 15)


AMOUNT = st.none() | st.integers(0, 1000).map(float)
LOOK = st.tuples(
    st.sampled_from(("job-a", "job-b")),
    st.sampled_from(("pod-1", "pod-2")),
    st.integers(0, 3 * 3600),
    st.tuples(*(AMOUNT for _ in SUMS[1:])),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(LOOK, max_size=20), st.lists(st.integers(0, 7200), min_size=1, max_size=3))
def test_thinning_changes_no_sum(looks: list[Any], thinned_s: list[int]) -> None:
    with TemporaryDirectory() as folder:
        store = UsageStore(Path(folder) / "usage.sqlite")
        store.add(Stretch(job, pod, NOW_S - ago, 15.0, *sums) for job, pod, ago, sums in looks)

        def sums() -> dict[str, list[float | None]]:
            found = store.by_job(0.0, NOW_S)
            return {job: [getattr(each, name) for name in SUMS] for job, each in found.items()}

        before = sums()
        for later in sorted(thinned_s):
            store.thin(NOW_S + later)
        assert sums() == before
        rows = store.of_job("job-a", 0.0, NOW_S, 60.0)
        known = [each.cpu_s for each in rows if each.cpu_s is not None]
        assert before.get("job-a", [15.0, None])[1] == (sum(known) if known else None)


def test_only_a_week_is_kept_and_older_looks_are_few(tmp_path: Path) -> None:
    store = UsageStore(tmp_path / "usage.sqlite")
    looks = [Stretch("job", "pod", NOW_S - 15 * n, 15.0, 1.0) for n in range(960)]
    store.add([*looks, Stretch("gone", "pod", NOW_S - KEPT_S - 1, 15.0, 1.0)])
    store.thin(NOW_S)
    assert store.by_job(0.0, NOW_S).keys() == {"job"}
    rows = store.of_job("job", NOW_S - 4 * 3600, NOW_S, 0.001)
    assert len(rows) < 240 + 3 * 3600 / 120 + 3  # an hour of looks, and three of two minutes
    assert sum(each.cpu_s or 0 for each in rows) == 960


def test_a_file_that_is_no_database_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "usage.sqlite"
    file.write_bytes(b"not a database" * 100)
    store = UsageStore(file)
    store.add([Stretch("job", "pod", NOW_S, 15.0, 1.0)])
    assert store.by_job(0.0, NOW_S)["job"].cpu_s == 1.0


async def test_rest_reads_the_figures_with_its_token(tmp_path: Path) -> None:
    store = UsageStore(tmp_path / "usage.sqlite")
    store.add(Stretch("job", "pod", NOW_S + 15 * n, 15.0, 1.0) for n in range(1, 9))
    key = service_key(CLUSTER_KEY, agent("n"))
    guard = TokenGuard(agent("n"), SecretStr(key), PlumbingMetrics(CollectorRegistry()))
    transport = httpx2.ASGITransport(app=Starlette(routes=usage_routes(store, guard)))

    async def ask(path: str, query: str, token_of: str = "") -> httpx2.Response:
        token = make_token(key, agent("n"), token_of or path, now_s=time.time())
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get(f"{path}?{query}", headers=headers)

    span = f"since={NOW_S}&until={NOW_S + 120}"
    [(pod, columns)] = (await ask("/usage/job", f"{span}&step=60.1")).json()["pods"].items()
    assert (pod, columns["cpu_s"], columns["sent"]) == ("pod", [4, 4], [None, None])
    assert columns["at_s"] == [NOW_S + 60, NOW_S + 120]
    assert (await ask("/usage", span)).json()["jobs"]["job"]["span_s"] == 120
    assert (await ask("/usage/other", span)).json() == {"pods": {}}
    for refused in ("since=x", "since=2&until=1", f"{span}&step=0.001", "since=nan"):
        assert (await ask("/usage/job", refused)).status_code == 400
    assert (await ask("/usage/job", span, token_of="/usage")).status_code == 401
