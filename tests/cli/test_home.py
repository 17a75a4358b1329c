"""MUSTER_HOME: found in one place, private, whole after any kill, owned by one process."""

import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cli.embedded.process import EmbeddedServerError, free_port
from cli.home import (
    Credentials,
    checkout_root,
    find_home,
    read_credentials,
    read_json,
    write_credentials,
    write_json,
)
from cli.standalone.logs import cut
from cli.standalone.state import HomeInUseError, HomeState, owning

LINUX_GIVES_FROM = 32768  # to outgoing connections, where nobody has set it otherwise


def test_the_environment_chooses_the_home_else_the_checkout_has_it() -> None:
    assert find_home({"MUSTER_HOME": "/somewhere"}) == Path("/somewhere")
    root = checkout_root()
    assert root is not None
    assert find_home({}) == root / ".muster"


def test_an_installed_command_keeps_its_state_with_the_users_other_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cli.home.checkout_root", lambda: None)
    assert find_home({"XDG_STATE_HOME": "/state"}) == Path("/state/muster")


def test_a_user_who_may_not_write_to_the_checkout_has_a_home_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cli.home.os.access", lambda *_: False)
    assert find_home({"XDG_STATE_HOME": "/state"}) == Path("/state/muster")


def test_credentials_are_private_and_for_their_server_only(tmp_path: Path) -> None:
    login = Credentials("http://one", "secret", "ada", renew_at=7.5)
    write_credentials(tmp_path, login)
    assert stat.S_IMODE((tmp_path / "credentials.json").stat().st_mode) == 0o600
    assert read_credentials(tmp_path, {}) == login
    elsewhere = {"MUSTER_URL": "http://two"}
    assert read_credentials(tmp_path, elsewhere) == Credentials("http://two", "", "ada")
    elsewhere = {"MUSTER_URL": "http://two", "MUSTER_TOKEN": "other"}
    assert read_credentials(tmp_path, elsewhere).token == "other"


def test_a_broken_file_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json is not valid JSON.*fix or remove"):
        read_json(tmp_path / "state.json")


def test_a_write_leaves_no_other_file(tmp_path: Path) -> None:
    write_json(tmp_path / "some.json", {"n": 1})
    write_json(tmp_path / "some.json", {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]
    assert read_json(tmp_path / "some.json") == {"n": 2}


def test_ports_and_secrets_are_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = HomeState(tmp_path)
    port, secret = first.port("launcher"), first.secret("cluster_key")
    first.mark_done("demo")
    second = HomeState(tmp_path)
    assert second.port("launcher") == port
    assert second.secret("cluster_key") == secret
    assert second.is_done("demo")
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600


def test_a_choice_holds_until_another_one_is_made(tmp_path: Path) -> None:
    for chosen, expected in ((None, "embedded"), ("apache", "apache"), (None, "apache")):
        state = HomeState(tmp_path)
        assert state.choice("kafka", chosen, "embedded") == expected
        state.save()


def test_two_parts_never_get_one_port(tmp_path: Path) -> None:
    state, wanted = HomeState(tmp_path), free_port()
    assert state.port("one", wanted) == wanted
    assert state.port("two", wanted) != wanted


def test_no_part_gets_a_port_that_an_outgoing_connection_could_have(tmp_path: Path) -> None:
    given = {HomeState(tmp_path).port(f"part-{number}") for number in range(50)}
    assert max(given) < LINUX_GIVES_FROM


def test_a_known_port_that_is_taken_is_named_with_the_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=f"Port {port}.*MUSTER_PORT"):
            HomeState(tmp_path).fixed_port("rest", port, "MUSTER_PORT")


def test_one_process_owns_a_home_and_a_kill_frees_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from cli.standalone.state import owning\n"
        "with owning(pathlib.Path(sys.argv[1])):\n"
        "    print('mine', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "mine\n"
        with pytest.raises(HomeInUseError, match="already runs over"), owning(tmp_path):
            pass
        owner.kill()
    with owning(tmp_path):
        pass


def test_a_home_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with owning(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_large_log_is_cut_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "rest.log"
    with log.open("a") as writer:
        writer.write("x" * 100)
        writer.flush()
        cut(log, 50)
        writer.write("new\n")
        writer.flush()
    assert log.read_text() == "new\n"
    assert (tmp_path / "rest.log.1").read_text() == "x" * 100


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_json(file, {"old": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError):
            write_json(file, {"new": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert read_json(file) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
