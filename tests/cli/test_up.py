"""`muster up` as a person meets it: real processes, killed and stopped, and found again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli.client import Client, CommandError
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from cli.home import Credentials, read_credentials, read_json, write_credentials
from cli.jobs import detail

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("up"),  # one at a time: each is seven processes
]
DEADLINE_S, POLL_S = 120.0, 0.1
DEMO_S = 500.0
"""A start, a job that trains, and an end, on a slow machine."""
IS_UP = "Muster is up"
PARTS = {"database", "kafka", "rest", "launcher", "scheduler", "runtime-agent", "alerting"}

WAITS_FOR_MARK = """\
protocolVersion: 2
name: sleeper
type: job
prerequisites: [{type: dockerimage, name: image, uri: none}]
taskRoles:
  main:
    dockerImage: image
    resourcePerInstance: {cpu: 1, memoryMB: 64, gpu: 1}
    commands: ["echo attempt; while [ ! -e $MARK ]; do sleep 0.1; done; echo done"]
"""


SLEEPER = WAITS_FOR_MARK.replace("$MARK", "/nowhere/at/all")


class Here:
    """One MUSTER_HOME of a test, and the commands in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.parent.chmod(0o755)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home.parent),
            "MUSTER_HOME": str(home),
            "MUSTER_PORT": str(free_port()),
            "MUSTER_KAFKA_PORT": str(free_port()),
            "MUSTER_DATABASE_PORT": str(free_port()),
            "MUSTER_FAKE_GPUS": "8",
            "MUSTER_TASK_PATHS": str(home.parent),  # where a test leaves its mark
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cli", *words]

    def run(
        self, *words: str, text: str | None = None, timeout_s: float = DEADLINE_S
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def up(self, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Everything runs and is ready; whatever is left of it is ended afterwards."""
        log = self.home.with_suffix(".up.log")
        log.touch()
        already = log.read_text().count(IS_UP)
        with log.open("a") as output:
            process = subprocess.Popen(
                self.command("up", *words), env=self.environment, stdout=output, stderr=output
            )
        try:
            self.until(lambda: log.read_text().count(IS_UP) > already, log.read_text)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(DEADLINE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def until(self, is_so: Callable[[], bool], explain: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, explain() or self.run("jobs").stdout
            time.sleep(POLL_S)

    def pids(self) -> dict[str, int | None]:
        """What `muster status` shows, without the start of a command."""
        services = read_json(self.home / "running.json").get("services", {})
        return {name: part["pid"] for name, part in services.items()}

    def job(self, name: str) -> Any:
        credentials = read_credentials(self.home, {})
        try:
            found = detail(Client(credentials.url, credentials.token), f"admin~{name}")
        except CommandError:  # it is just starting
            return {}
        return found["jobStatus"]

    def state(self, job: str) -> str:
        return str(self.job(job).get("state"))

    def runs_in(self, job: str, attempt: int) -> bool:
        status = self.job(job)
        return (status.get("state"), status.get("attemptId")) == ("RUNNING", attempt)

    def retries(self, job: str) -> Any:
        return self.job(job)["retryDetails"]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    return Here(closed / "home")


def _is_running(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_dies_comes_back_and_nothing_is_left_running(here: Here) -> None:
    with here.up() as up:
        status = here.json("status")
        assert {"rest", "kafka", "database", "services"} <= status.keys()
        assert status["services"].keys() == PARTS
        assert status["rest"] == f"http://127.0.0.1:{here.environment['MUSTER_PORT']}"
        assert "password" not in json.dumps(status)
        assert status["services"]["rest"]["address"] == status["rest"]
        second = here.run("up")
        assert second.returncode == 9
        assert "already runs" in second.stderr
        assert here.run("submit", "-", text=SLEEPER).returncode == 0
        here.until(lambda: here.state("sleeper") == "RUNNING")
        before = here.pids()
        for pid in before.values():
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        here.until(lambda: not {None, *before.values()} & {*here.pids().values()})
        here.until(lambda: here.run("status").returncode == 0)
        assert here.state("sleeper") == "RUNNING"
        assert here.run("stop", "sleeper", "--wait").returncode == 0
        pids = here.pids()
        up.send_signal(signal.SIGINT)
        assert up.wait(DEADLINE_S) == 0
    assert not [name for name, pid in pids.items() if _is_running(pid)]
    assert not (here.home / "running.json").exists()
    assert not (here.home / "first-password").exists()
    outside = {path.name for path in here.home.parent.iterdir()}
    assert outside == {"home", "home.up.log"}, "nothing outside of MUSTER_HOME is written"


def test_the_next_start_has_the_same_port_and_token_and_keeps_another_servers_login(
    here: Here,
) -> None:
    port = here.environment["MUSTER_PORT"]
    with here.up() as up:
        assert here.run("logout").returncode == 0
        assert here.run("jobs").returncode == 5, "nobody is logged in"
        up.send_signal(signal.SIGINT)
        assert up.wait(DEADLINE_S) == 0
    del here.environment["MUSTER_PORT"]
    with here.up() as up:
        assert here.json("status")["rest"] == f"http://127.0.0.1:{port}"
        assert here.run("jobs").returncode == 0
        up.send_signal(signal.SIGINT)
        assert up.wait(DEADLINE_S) == 0
    elsewhere = Credentials("https://muster.example.org", "a-token-of-another-server", "ann")
    write_credentials(here.home, elsewhere)
    here.environment["MUSTER_PORT"] = str(free_port())
    with here.up():
        assert read_credentials(here.home, {}) == elsewhere


def test_servers_elsewhere_are_used_and_none_is_started(
    here: Here, empty_database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    here.environment["MUSTER_DATABASE_URL"] = empty_database_url
    here.environment["MUSTER_KAFKA_BOOTSTRAP"] = fresh_broker.bootstrap
    with here.up():
        status = here.json("status")
        assert status["services"].keys() == PARTS - {"database", "kafka"}
        assert status["kafka"] == fresh_broker.bootstrap
        assert "@127.0.0.1" in status["database"]
        assert status["database"].partition("//")[2].startswith("muster@"), "no password is shown"
        assert here.run("jobs").returncode == 0
    assert not (here.home / "postgres").exists()


@pytest.mark.apache
def test_on_apache_kafka_each_service_has_a_log_in_of_its_own(
    here: Here, apache_installation: Path
) -> None:
    here.environment["MUSTER_KAFKA_HOME"] = str(apache_installation)
    with here.up("--kafka", "apache"):
        quick = SLEEPER.replace("echo attempt; while", "exit 0; while")
        assert here.run("submit", "-", "--wait", text=quick).returncode == 0
        users = json.loads(here.run("status", "--output", "json").stdout)["users"]
        expected = "separated: " if os.geteuid() == 0 else "not separated: the agent is not root"
        assert users.startswith(expected)
        passwords = read_json(here.home / "kafka" / "passwords.json")
        for service, pid in here.pids().items():
            if service in ("database", "kafka"):
                continue
            environment = Path(f"/proc/{pid}/environ").read_text()
            user = "agent-here" if service == "runtime-agent" else service
            assert f"MUSTER_KAFKA_USER={user}\0" in environment
            assert [name for name, word in passwords.items() if word in environment] == [user]
        assert here.run("events", "redrive").stdout.endswith("agents: asked\n")
        with subprocess.Popen(
            here.command("events", "--from-start", "--topic", "settings-changed", "-o", "json"),
            env=here.environment,
            stdout=subprocess.PIPE,
        ) as followed:
            assert followed.stdout is not None
            assert json.loads(followed.stdout.readline())["topic"] == "settings-changed"
            followed.send_signal(signal.SIGINT)
    logs = [path.read_text() for path in (here.home / "log").iterdir()]
    assert not any("the bus refuses" in log for log in logs)


def test_a_job_outlives_every_way_to_end_muster_at_no_cost(here: Here) -> None:
    mark = here.home.parent / "mark"
    text = WAITS_FOR_MARK.replace("$MARK", str(mark))
    with here.up() as killed:
        assert here.run("submit", "-", text=text).returncode == 0
        here.until(lambda: here.state("sleeper") == "RUNNING")
        pids = here.pids()
        killed.kill()
        killed.wait()
        here.until(lambda: not any(_is_running(pid) for pid in pids.values()))
    with here.up():  # ends by Ctrl-C, which withdraws the task
        here.until(lambda: here.state("sleeper") == "RUNNING")
        assert here.retries("sleeper") == {"user": 0, "platform": 0, "resource": 0}
    withdrawn = {"user": 0, "platform": 1, "resource": 0}
    with here.up("--keep-jobs"):  # ends by Ctrl-C, too
        here.until(lambda: here.runs_in("sleeper", attempt=1))
        assert here.retries("sleeper") == withdrawn
    with here.up() as hurried:
        here.until(lambda: here.runs_in("sleeper", attempt=1))
        assert here.retries("sleeper") == withdrawn
        # A task that does not care for SIGTERM would hold up the stop for its whole grace.
        stubborn = text.replace("echo attempt", "trap '' TERM; echo attempt")
        stubborn = stubborn.replace("name: sleeper", "name: stubborn")
        assert here.run("submit", "-", text=stubborn).returncode == 0
        here.until(lambda: "attempt" in here.run("logs", "stubborn").stdout)
        log = here.home.with_suffix(".up.log")
        before = log.read_text().count("a second signal")
        hurried.send_signal(signal.SIGINT)
        here.until(lambda: log.read_text().count("a second signal") > before)
        hurried.send_signal(signal.SIGINT)
        assert hurried.wait(DEADLINE_S) == 130
    mark.touch()
    with here.up():
        for job in ("sleeper", "stubborn"):
            here.until(lambda job=job: here.state(job) == "SUCCEEDED")  # type: ignore[misc]
            assert here.retries(job)["user"] == 0
            assert here.run("logs", job).stdout.splitlines()[-1].endswith("done")


def test_the_demo_ends_with_the_sample_jobs_status(here: Here) -> None:
    done = here.run("demo", timeout_s=DEMO_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED" in done.stdout
    assert "accuracy on" in done.stdout
    assert "is SUCCEEDED" in done.stdout
