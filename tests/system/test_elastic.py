"""Elastic jobs through all five services: they start small on a busy cluster, grow, shrink for
others, and succeed in their first attempt.
"""

from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.contracts.topics import Service
from whole_muster import Muster, a_job, a_muster, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

QUICK = {"stop_grace_s": 2.0, "retry_backoff_first_s": 0.1}
UNTIL = "until test -e {gate}; do sleep 0.1; done"


def an_elastic_job(folder: Path) -> str:
    """Four tasks of two GPUs, of which one is enough; they note when they run, and run until a
    file ends them.
    """
    note = f"touch {folder}/ran-$PAI_TASK_INDEX-$MUSTER_TASK_ATTEMPT"
    least = f"echo $MUSTER_MIN_TASK_COUNT_worker > {folder}/least"
    until = UNTIL.format(gate=folder / "done")
    text = a_job("elastic", f"{note}; {least}; {until}", instances=4, gpus=2)
    return text + "extras: {muster: {taskRoles: {worker: {minInstances: 1}}}}\n"


def a_job_until(gate: Path, gpus: int) -> str:
    return a_job(gate.name, UNTIL.format(gate=gate), gpus=gpus)


async def running(muster: Muster, name: str) -> list[int]:
    """The indices of the tasks that run."""
    tasks = (await muster.job(name))["taskRoles"]["worker"]["taskStatuses"]
    return [task["taskIndex"] for task in tasks if task["taskState"] == "RUNNING"]


def ran(folder: Path, which: str = "*") -> set[str]:
    return {path.name for path in folder.glob(f"ran-{which}")}


async def started_small(muster: Muster, folder: Path) -> tuple[str, str]:
    """A job that keeps most GPUs busy, and an elastic one that runs beside it with its least."""
    busy = await muster.submit(a_job_until(folder / "busy", gpus=6))
    await eventually(lambda: muster.state(busy), lambda s: s == "RUNNING")
    name = await muster.submit(an_elastic_job(folder))
    await eventually(lambda: running(muster, name), lambda tasks: tasks == [0])
    return busy, name


async def restart(muster: Muster) -> None:
    for service in (Service.SCHEDULER, Service.LAUNCHER):
        await muster.stop(service)
        await muster.start(service)


@pytest.mark.parametrize("restarts", [False, True], ids=["undisturbed", "restarted"])
async def test_an_elastic_job_starts_small_grows_shrinks_and_succeeds(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path, restarts: bool
) -> None:
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        _, name = await started_small(muster, tmp_path)
        assert await muster.state(name) == "RUNNING"
        if restarts:
            await restart(muster)
        (tmp_path / "busy").touch()
        await eventually(lambda: running(muster, name), lambda tasks: tasks == [0, 1, 2, 3])
        owner = await muster.submit(a_job_until(tmp_path / "owner", gpus=4))
        await eventually(lambda: muster.state(owner), lambda s: s == "RUNNING")
        shrunk = await eventually(lambda: running(muster, name), lambda tasks: len(tasks) == 2)
        assert 0 in shrunk
        if restarts:
            await restart(muster)
        (tmp_path / "owner").touch()
        await eventually(lambda: running(muster, name), lambda tasks: tasks == [0, 1, 2, 3])
        again = {f"ran-{task}-1" for task in range(4) if task not in shrunk}
        (tmp_path / "done").touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        assert again == ran(tmp_path, "*-1")
        assert (tmp_path / "least").read_text() == "1\n"
        status = (await muster.job(name))["jobStatus"]
        assert (status["attemptId"], status["retries"]) == (0, 0)
        assert await muster.end_of(owner) == "SUCCEEDED"
        await eventually(muster.unsettled, lambda count: count == 0)


async def test_an_elastic_job_succeeds_without_tasks_that_never_had_a_place(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        busy, name = await started_small(muster, tmp_path)
        (tmp_path / "done").touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        assert ran(tmp_path) == {"ran-0-0"}
        (tmp_path / "busy").touch()
        assert await muster.end_of(busy) == "SUCCEEDED"
        await eventually(muster.unsettled, lambda count: count == 0)


async def test_the_scheduler_gets_the_time_of_a_tasks_checkpoint(
    muster: Muster, tmp_path: Path
) -> None:
    save = "sleep 1; touch $MUSTER_CHECKPOINT_FILE"
    text = a_job("saving", f"{save}; {UNTIL.format(gate=tmp_path / 'done')}", gpus=1)
    name = await muster.submit(text)
    pool = muster.runtimes[Service.REST].pool
    saved = "SELECT request->>'checkpointedAt' FROM scheduler.gang"
    await eventually(lambda: pool.fetchval(saved), lambda at: at is not None)
    (tmp_path / "done").touch()
    assert await muster.end_of(name) == "SUCCEEDED"
