"""The sample jobs: valid job files, whose programs run as described on a task's resources."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cli.embedded.process import free_port
from muster.contracts.jobs import JobSpec
from muster.protocol import parse_job

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 90
ACCURACY = re.compile(r"accuracy on \d+ unseen images: (0\.\d+|1\.0+)")


def _spec(file: str) -> JobSpec:
    parsed = parse_job((EXAMPLES / file).read_bytes())
    surprising = [each for each in parsed.warnings if not each.path.endswith("].uri")]
    assert not surprising  # no image is pulled for tasks without containers
    return parsed.spec


def _commands(spec: JobSpec) -> dict[str, str]:
    return {role.name: role.command for role in spec.task_roles}


@contextmanager
def _task(command: str, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        env={**environment, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _peers(port: int) -> dict[str, str]:
    return {
        "PAI_TASK_ROLE_TASK_COUNT_worker": "2",
        "PAI_HOST_IP_server_0": "127.0.0.1",
        "PAI_PORT_LIST_server_0_weights": str(port),
    }


def _worker(port: int, index: int) -> dict[str, str]:
    return _peers(port) | {"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(index)}


@pytest.mark.parametrize("file", [path.name for path in EXAMPLES.glob("*.yaml")])
def test_every_example_is_a_valid_job(file: str) -> None:
    assert _spec(file).task_roles


@pytest.mark.parametrize("file", [path.name for path in EXAMPLES.glob("*.yaml")])
def test_every_example_brings_what_its_plain_image_lacks(file: str, tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" != -c ]\n')
    python.chmod(0o755)
    for command in _commands(_spec(file)).values():
        log.unlink(missing_ok=True)
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(["/bin/bash", "-ec", command], env={"PATH": path}, check=True)
        asked, installed, ran = log.read_text().splitlines()
        assert asked.startswith("-c import ")
        assert installed.startswith("-m pip install --quiet ")
        assert ran == "-"


def test_the_single_task_learns_the_digits() -> None:
    with _task(_commands(_spec("digits.yaml"))["train"], {}) as task:
        output, _ = task.communicate(timeout=TIMEOUT_S)
        assert task.returncode == 0, output
    found = ACCURACY.search(output)
    assert found, output
    assert float(found[1]) > 0.9


@pytest.mark.parametrize("server_first", [True, False])
def test_server_and_workers_learn_together_in_any_order_of_start(server_first: bool) -> None:
    commands, port = _commands(_spec("digits-distributed.yaml")), free_port()
    with ExitStack() as tasks:

        def start(command: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
            return tasks.enter_context(_task(command, environment))

        server = start(commands["server"], _peers(port)) if server_first else None
        workers = [start(commands["worker"], _worker(port, index)) for index in (0, 1)]
        _all_end_well(server or start(commands["server"], _peers(port)), *workers)


def _all_end_well(server: "subprocess.Popen[str]", *workers: "subprocess.Popen[str]") -> None:
    outputs = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers]
    server_output, _ = server.communicate(timeout=TIMEOUT_S)
    assert [each.returncode for each in (server, *workers)] == [0, 0, 0], (server_output, outputs)
    accuracies = [found[1] for output in outputs if (found := ACCURACY.search(output))]
    assert len(accuracies) == 2
    assert len(set(accuracies)) == 1, "both workers end with the same weights"
    assert float(accuracies[0]) > 0.9


def test_a_lost_worker_fails_the_server_instead_of_hanging_it() -> None:
    commands, port = _commands(_spec("digits-distributed.yaml")), free_port()
    with _task(commands["server"], _peers(port)) as server:
        with _task(commands["worker"], _worker(port, 0)) as one:
            assert one.stdout is not None
            assert "worker 0 of 2" in one.stdout.readline()
            os.killpg(one.pid, signal.SIGKILL)
            with _task(commands["worker"], _worker(port, 1)) as two:
                server_output, _ = server.communicate(timeout=TIMEOUT_S)
                two.communicate(timeout=TIMEOUT_S)
        assert server.returncode != 0
        assert two.returncode != 0
    assert "a worker was lost" in server_output
