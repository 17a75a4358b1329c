"""The embedded database's folder: its owner, its password, and its creation as one step."""

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from cli.embedded.process import EmbeddedServerError
from cli.home import write_private

ROLE = DATABASE = "muster"
INIT_TIMEOUT_S = 120.0


class UserOptions(TypedDict, total=False):
    """The part of Popen's arguments that makes a child another user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class ServerUser:
    """The user of the server; `switch`: this process has to become that user first."""

    uid: int
    gid: int
    switch: bool

    def popen_options(self) -> UserOptions:
        """What to give Popen so that the child is this user."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_user(data: Path) -> ServerUser:
    """Root never runs PostgreSQL itself: the data's owner does, or `nobody` for new data."""
    me = os.geteuid()
    if data.exists():
        owner = data.stat()
        if me not in (0, owner.st_uid):
            raise EmbeddedServerError(
                f"{data} belongs to user {owner.st_uid}: start as that user or as root, "
                "or choose another MUSTER_HOME."
            )
        if me == 0 and owner.st_uid != 0:
            return ServerUser(owner.st_uid, owner.st_gid, switch=True)
    if me != 0:
        return ServerUser(me, os.getegid(), switch=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedServerError(
            "PostgreSQL does not run as root and there is no user `nobody`: start as an "
            "ordinary user, or set MUSTER_DATABASE_URL."
        ) from None
    return ServerUser(nobody.pw_uid, nobody.pw_gid, switch=True)


def server_environment() -> dict[str, str]:
    """All that PostgreSQL needs; nothing of the caller's reaches it."""
    return {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TZ": "UTC"}


def make_password(home: Path) -> None:
    """Have a password for the database role in home/password, readable by this user alone."""
    path = home / "password"
    if path.exists():
        return
    if (home / "data").exists():
        raise EmbeddedServerError(f"{path} is missing: put the database's password back into it.")
    write_private(path, secrets.token_urlsafe(24) + "\n")


def initialise(home: Path, binaries: Path, user: ServerUser, *, fsync: bool) -> None:
    """Make home/data: under another name first, so that a kill in between leaves no half-made
    database.
    """
    for half_made in home.glob("data.making-*"):
        shutil.rmtree(half_made)
    making = home / f"data.making-{secrets.token_hex(4)}"
    making.mkdir(mode=0o700)
    if user.switch:
        os.chown(making, user.uid, user.gid)
    options = [f"--username={ROLE}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    options += [] if fsync else ["--no-sync"]
    password = (home / "password").read_text().strip()
    with _password_pipe(password, user) as pipe, open_directory(making) as data:
        initdb = [str(binaries / "bin/initdb"), "-D", fd_path(data), f"--pwfile=/dev/fd/{pipe}"]
        _run([*initdb, *options], user, (data, pipe), "")
    with open_directory(making) as data:
        single = [str(binaries / "bin/postgres"), "--single", "-D", fd_path(data), "postgres"]
        _run(single, user, (data,), f"CREATE DATABASE {DATABASE};\n")
    making.rename(home / "data")


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """A descriptor of a directory, by which a child enters it whatever guards the way there."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def fd_path(descriptor: int) -> str:
    """The name under which a child that inherits the descriptor sees the directory."""
    return f"/proc/self/fd/{descriptor}"


@contextmanager
def _password_pipe(password: str, user: ServerUser) -> Iterator[int]:
    """The reading end of a pipe that holds the password, so that it is in no file and no command
    line.
    """
    reading, writing = os.pipe()
    try:
        if user.switch:
            os.fchown(reading, user.uid, -1)  # the child opens it anew by its name under /dev/fd
        os.write(writing, password.encode() + b"\n")
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _run(command: list[str], user: ServerUser, pass_fds: tuple[int, ...], text: str) -> None:
    done = subprocess.run(
        command,
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        env=server_environment(),
        cwd="/",
        timeout=INIT_TIMEOUT_S,
        check=False,
        **user.popen_options(),
    )
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0 or "ERROR:" in output:
        raise EmbeddedServerError(f"{Path(command[0]).name} failed: {output[-1000:].strip()}")
