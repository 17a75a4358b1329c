"""The embedded PostgreSQL: whole or absent, closed to other users, and back after any kill."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import pytest
from cli.embedded import binaries, database_folder
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.process import EmbeddedServerError, is_port_free, standing_in

pytestmark = pytest.mark.postgres
AS_ROOT = os.geteuid() == 0
DEADLINE_S = 60.0


async def _rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _modes_above(folder: Path) -> dict[Path, int]:
    return {each: stat.S_IMODE(each.stat().st_mode) for each in folder.parents}


@pytest.fixture
def private_home(tmp_path: Path) -> Path:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    return closed / "postgres"


async def test_committed_rows_outlive_a_kill_under_a_private_folder(private_home: Path) -> None:
    modes = _modes_above(private_home)
    with EmbeddedPostgres(private_home) as server:
        await _execute(server.dsn, "CREATE TABLE kept AS SELECT generate_series(1, 500) AS n")
        server.kill()
        server.start()
        assert await _rows(server.dsn, "SELECT count(*) FROM kept") == [(500,)]
    with EmbeddedPostgres(private_home) as again:
        assert await _rows(again.dsn, "SELECT count(*) FROM kept") == [(500,)]
    assert _modes_above(private_home) == modes


@pytest.mark.skipif(not AS_ROOT, reason="only root has to become another user")
def test_root_never_runs_the_server_itself(private_home: Path) -> None:
    with EmbeddedPostgres(private_home) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        server.kill()
        server.start()
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can enter; those of pytest are closed, and shared by other tests."""
    with tempfile.TemporaryDirectory(prefix="muster-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.mark.skipif(not AS_ROOT, reason="only root has to become another user")
@pytest.mark.parametrize("home_is_open", [True, False])
def test_binaries_below_a_private_folder_are_brought_to_a_readable_place(
    reachable: Path, monkeypatch: pytest.MonkeyPatch, home_is_open: bool
) -> None:
    tmp_path = reachable
    home = tmp_path / ("open" if home_is_open else "closed") / "postgres"
    home.parent.mkdir(mode=0o755 if home_is_open else 0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.setattr(binaries, "find_spec", _below_a_private_folder(tmp_path / "private"))
    with EmbeddedPostgres(home) as server:
        program = Path(f"/proc/{server.pid}/exe").readlink()
        assert program.is_relative_to(home if home_is_open else elsewhere)
        server.kill()
        server.start()
        assert asyncio.run(_rows(server.dsn, "SELECT 1")) == [(1,)]
        assert len(list(elsewhere.iterdir())) == (0 if home_is_open else 1)
    assert not list(elsewhere.iterdir()), "the temporary folder is removed at a stop"


async def test_connections_without_the_password_are_refused(
    postgres_server: EmbeddedPostgres,
) -> None:
    for url in (
        f"postgresql://muster@127.0.0.1:{postgres_server.port}/muster",
        f"postgresql://muster:guess@127.0.0.1:{postgres_server.port}/muster",
    ):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(url)
    assert stat.S_IMODE((postgres_server.home / "password").stat().st_mode) == 0o600
    everything = (postgres_server.home / "postgres.log").read_text()
    assert postgres_server.dsn.split(":")[2].split("@")[0] not in everything


async def test_a_server_left_by_a_killed_owner_is_replaced(private_home: Path) -> None:
    with EmbeddedPostgres(private_home) as first:
        await _execute(first.dsn, "CREATE TABLE kept AS SELECT 1 AS n")
    orphan = _start_orphan(private_home, first.port)
    with EmbeddedPostgres(private_home, port=first.port) as second:
        assert orphan not in standing_in(private_home / "data", "postgres")
        assert await _rows(second.dsn, "SELECT n FROM kept") == [(1,)]


def test_the_server_ends_with_its_owner(private_home: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from cli.embedded.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), fsync=False)\n"
        "server.start(); print(server.port, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(private_home)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + DEADLINE_S
    while standing_in(private_home / "data", "postgres"):
        assert time.monotonic() < deadline, "the server outlived its owner"
        time.sleep(0.02)
    assert is_port_free(port)


def test_a_stale_pid_file_naming_a_foreign_process_harms_nobody(private_home: Path) -> None:
    with EmbeddedPostgres(private_home, fsync=False):
        pass
    foreign = subprocess.Popen(["/bin/sleep", "600"], **_as_server_user(private_home))
    try:
        (private_home / "data/postmaster.pid").write_text(f"{foreign.pid}\n/somewhere\n0\n5432\n")
        with EmbeddedPostgres(private_home, fsync=False) as server:
            assert server.pid is not None
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_a_failed_start_leaves_no_half_made_database(
    private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database_folder._run

    def failing(command: list[str], *rest: object) -> None:
        if "--single" in command:
            raise EmbeddedServerError("cut short")
        run(command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(database_folder, "_run", failing)
    with pytest.raises(EmbeddedServerError, match="cut short"):
        EmbeddedPostgres(private_home, fsync=False).start()
    assert not (private_home / "data").exists()
    monkeypatch.undo()
    with EmbeddedPostgres(private_home, fsync=False) as server:
        assert server.pid is not None
    assert not list(private_home.glob("data.making-*"))


def test_a_second_owner_is_refused(postgres_server: EmbeddedPostgres) -> None:
    with pytest.raises(EmbeddedServerError, match="in use by another process"):
        EmbeddedPostgres(postgres_server.home).start()
    assert postgres_server.pid is not None


def test_a_taken_port_is_named(postgres_server: EmbeddedPostgres, tmp_path: Path) -> None:
    second = EmbeddedPostgres(tmp_path / "other", port=postgres_server.port, fsync=False)
    with pytest.raises(EmbeddedServerError, match=f"127.0.0.1:{postgres_server.port}.*in use"):
        second.start()
    assert second.pid is None


def _below_a_private_folder(private: Path) -> Callable[[str], ModuleSpec]:
    """The package as if it were installed where only root gets."""
    spec = find_spec(binaries.PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parent.parent
    private.mkdir(mode=0o700)
    for name in (f"{binaries.PACKAGE}/{binaries.VERSION_FOLDER}", f"{binaries.PACKAGE}.libs"):
        shutil.copytree(packages / name, private / name, symlinks=True, copy_function=os.link)
    origin = str(private / binaries.PACKAGE / "__init__.py")
    return lambda name: ModuleSpec(name, None, origin=origin)


def _as_server_user(home: Path) -> database_folder.UserOptions:
    """Popen's arguments for a process of the user that owns the data."""
    if not AS_ROOT:
        return {}
    owner = (home / "data").stat()
    return {"user": owner.st_uid, "group": owner.st_gid}


def _start_orphan(home: Path, port: int) -> int:
    """A server over the folder whose owner is gone and whose death the kernel tells nobody."""
    user = _as_server_user(home)
    with database_folder.open_directory(home / "data") as data:
        place = binaries.readable_binaries(home, user.get("user"))
        server = [str(place / "bin/postgres"), "-D", database_folder.fd_path(data), "-p", str(port)]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", *server],
            pass_fds=(data,),
            cwd="/",
            start_new_session=True,
            check=True,
            **user,
        )
    deadline = time.monotonic() + DEADLINE_S
    while "ready" not in _text(home / "data/postmaster.pid"):
        assert time.monotonic() < deadline, "the orphan did not start"
        time.sleep(0.02)
    return int(_text(home / "data/postmaster.pid").split()[0])


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
