"""The agent opens its pods' secrets for their tasks, and for nothing else."""

from pathlib import Path
from typing import Any

import pytest
from muster.contracts.pods import PodRun
from muster.contracts.secrets import PodSecrets, PullCredentials
from muster.errors import Broken
from muster.sealing import make_private_key, public_key_of, seal
from runtime_agent.confinement import Confinement
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Phase as PodPhase
from runtime_agent.domain.pods import Pod
from runtime_agent.logreader import tail_lines
from runtime_agent.pods import Phase
from runtime_agent.secrets_key import FILE, SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.supervised import SupervisedPods

PULL = PullCredentials(username="me", password="marker-pull")


def a_pod(command: str, to: str, *, secrets_of: str = "pod", **values: str) -> Pod:
    secrets = PodSecrets(
        pod=secrets_of,
        values={f"$secrets.{name}": each for name, each in values.items()},
        pull=PULL,
    )
    run = PodRun(
        user="ada",
        job_name="ada~job",
        virtual_cluster="default",
        role="worker",
        index=0,
        job_attempt=0,
        task_attempt=0,
        command=command,
        cpu=1,
        memory_mb=64,
        secrets=seal(secrets.model_dump_json(), to),
        roles=(),
        peers=(),
    )
    return Pod("pod", "job", "job-0", PodPhase.ACCEPTED, run)


@pytest.fixture
def runner(node: Any, tmp_path: Path) -> SupervisedPods:
    settings = AgentSettings(launch_timeout_s=60.0, node="n")
    free = Confinement({}, (), "for this test")
    devices = SimulatedDevices("n", 0)
    key = SecretsKey(tmp_path)
    return SupervisedPods(
        settings, node.pods, node.fork_server, devices, tmp_path / "no-doorbell", free, key
    )


def ending_of(runner: SupervisedPods, pod: Pod, patience: Any) -> Ending:
    runner.launch(pod)
    patience(lambda: runner.directories.observe("pod").phase is Phase.EXITED)
    (seen,) = runner.look([pod])
    assert seen.ending is not None
    return runner.secrets_key.masked(pod, seen.ending)


def test_a_key_is_made_once_and_is_for_the_agent_alone(tmp_path: Path) -> None:
    key = SecretsKey(tmp_path).public
    assert SecretsKey(tmp_path).public == key
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    (tmp_path / FILE).write_text("marker")
    with pytest.raises(Broken, match="remove it") as caught:
        SecretsKey(tmp_path)
    assert "marker" not in str(caught.value)


def test_a_pod_is_opened_with_its_command_and_who_pulls_its_image(tmp_path: Path) -> None:
    key = SecretsKey(tmp_path)
    opened = key.open(a_pod("run <% $secrets.a %> <% $secrets.b %>", key.public, a="marker"))
    assert opened.command == "run marker <% $secrets.b %>"
    assert opened.pull == PULL
    assert "marker" not in repr(opened)


@pytest.mark.parametrize("of", ["another key", "another pod"])
def test_secrets_of_another_start_nothing(tmp_path: Path, of: str) -> None:
    key = SecretsKey(tmp_path)
    to = public_key_of(make_private_key()) if of == "another key" else key.public
    with pytest.raises(OSError, match=of):
        key.open(a_pod("true", to, secrets_of=of, a="marker"))


def test_a_pods_last_words_are_masked_and_its_command_goes_with_it(
    runner: SupervisedPods, patience: Any
) -> None:
    command = "echo 'a marker, marker-pull' >&2; echo '<% $secrets.a %>' >&2; exit 3"
    pod = a_pod(command, runner.secrets_key.public, a="marker\nlines of it")
    ending = ending_of(runner, pod, patience)
    assert ending.log_tail == ("a ******, ******", "******", "******")
    assert "marker" in (runner.directories.logs_path("pod") / "stderr.log").read_text()
    left = [path for path in runner.directories.path("pod").iterdir() if path.is_file()]
    assert left
    assert not [path.name for path in left if b"lines of it" in path.read_bytes()]


def test_the_last_words_of_a_pod_whose_secrets_no_longer_open_are_left_out(
    runner: SupervisedPods, patience: Any, tmp_path: Path
) -> None:
    pod = a_pod("echo '<% $secrets.a %>' >&2; exit 3", runner.secrets_key.public, a="marker")
    runner.launch(pod)
    (tmp_path / FILE).unlink()
    runner.secrets_key = SecretsKey(tmp_path)
    assert ending_of(runner, pod, patience).log_tail == ()


def test_no_command_outlives_a_pod_whose_supervisor_was_killed(
    runner: SupervisedPods, node: Any, patience: Any, kill: Any
) -> None:
    pod = a_pod("exec sleep 600 # <% $secrets.a %>", runner.secrets_key.public, a="marker")
    runner.launch(pod)
    patience(lambda: node.pods.observe("pod").phase is Phase.RUNNING)
    command = node.pods.path("pod") / "command.sh"
    assert "marker" in command.read_text()
    kill(node, "pod")
    patience(lambda: any(seen.ending for seen in runner.look([pod])))
    assert not command.exists()


def test_a_line_that_is_cut_off_could_be_a_part_of_a_secret(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("x" * 20_000 + "\nwhole\n")
    assert tail_lines(log) == ("whole",)


def test_a_supervisor_removes_the_command_though_its_agent_is_gone(node: Any) -> None:
    assert node.run("exit 3").exit_code == 3
    assert not (node.pods.path("pod") / "command.sh").exists()
