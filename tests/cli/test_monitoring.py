"""`muster up --monitoring`: a Prometheus that scrapes all parts, or where it was looked for."""

import json
import os
import time
from pathlib import Path

import pytest
import real_prometheus
from cli.client import Exit
from cli.standalone.monitoring import FETCHED, configure, find_prometheus
from cli.standalone.processes import State
from cli.standalone.programs import SERVICES
from forked_muster import run_forked
from muster_up import Up
from real_prometheus import asked

DATA_S = 120.0


@pytest.mark.parametrize("named", [None, "/nowhere/prometheus"])
def test_without_a_prometheus_nothing_is_started_and_the_error_has_all_places(
    named: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "MUSTER_HOME": str(home)}
    environment |= {"MUSTER_PROMETHEUS": named} if named else {}
    done = run_forked(["up", "--monitoring"], environment=environment, timeout_s=60)
    told = done.stderr.decode()
    assert done.returncode == Exit.FAILED
    places = [named] if named else ["on the PATH", str(tmp_path / ".cache/muster/prometheus")]
    for word in (*places, "make prometheus", "MUSTER_PROMETHEUS"):
        assert word in told
    assert not (home / "log").exists()


@pytest.mark.parametrize("has_driver", [True, False])
def test_rules_about_gpus_need_a_driver(has_driver: bool, tmp_path: Path) -> None:
    configure(tmp_path, {"rest": 8080}, "token", has_gpu_driver=has_driver)
    assert (tmp_path / "rules/nodes.yaml").exists()
    assert (tmp_path / "rules/gpu.yaml").exists() == has_driver


def test_the_fetched_program_comes_before_one_on_the_path(tmp_path: Path) -> None:
    fetched, on_path = tmp_path / FETCHED, tmp_path / "bin/prometheus"
    for program in (on_path, fetched):
        program.parent.mkdir(parents=True)
        program.touch(0o700)
        environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(on_path.parent)}
        assert find_prometheus(None, environment) == program


@pytest.mark.system
@pytest.mark.xdist_group("up")
def test_muster_starts_though_prometheus_does_not(tmp_path: Path) -> None:
    one = Up(tmp_path / "home", {"MUSTER_PROMETHEUS": "/bin/false"}, unready=["prometheus"])
    one.start("--monitoring")
    try:
        assert one.status()["services"]["prometheus"]["state"] != State.READY
        assert "prometheus ended with status 1" in (one.home / "up.out").read_text()
    finally:
        one.stop()


@pytest.mark.prometheus
@pytest.mark.system
@pytest.mark.xdist_group("up")
def test_prometheus_scrapes_all_parts_and_needs_the_token_for_that(tmp_path: Path) -> None:
    one = Up(tmp_path / "home", {"MUSTER_PROMETHEUS": str(real_prometheus.program("prometheus"))})
    one.start("--monitoring")
    try:
        address = one.status()["services"]["prometheus"]["address"]
        deadline = time.monotonic() + DATA_S
        found: dict[str, str] = {}
        while set(found.values()) != {"1"} or set(found) != set(SERVICES):
            assert time.monotonic() < deadline, (found, one.account())
            time.sleep(0.2)
            series = asked(address, "query", query="up")["result"]
            found = {each["metric"]["service"]: each["value"][1] for each in series}
        (agent,) = asked(address, "query", query='up{node!=""}')["result"]
        assert agent["metric"]["node"] == os.uname().nodename
        rules = asked(address, "rules")["groups"]
        files = (real_prometheus.MONITORING / "rules").glob("*.yaml")
        wanted = {each.name for each in files} - {"gpu.yaml"}  # its GPUs are simulated
        assert {Path(each["file"]).name for each in rules} == wanted
        told = (one.home / "up.out").read_text()
        assert address in told
        assert "every process of this machine can read it" in told
        token = json.loads((one.home / "state.json").read_text())["secrets"]["metrics_token"]
        assert token not in told
    finally:
        one.stop()
    assert (one.home / "prometheus/token").stat().st_mode & 0o077 == 0
