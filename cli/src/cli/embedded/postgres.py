"""PostgreSQL from a wheel's binaries, so that users need not install a database server.

It promises: the server listens on 127.0.0.1 only and asks for a password; a folder is either a
whole database or none; a start after any kill finds every committed row; no permission outside its
own folder changes. Under root the server runs as another user (the owner of the data, else
`nobody`), also where the folder itself is closed to that user: the data directory is handed over as
an open file descriptor.
"""

import fcntl
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from cli.embedded.binaries import forget_binaries, readable_binaries
from cli.embedded.database_folder import (
    DATABASE,
    ROLE,
    ServerUser,
    fd_path,
    initialise,
    make_password,
    open_directory,
    server_environment,
    server_user,
)
from cli.embedded.process import EmbeddedServerError, dying_with_me, end_leftovers
from cli.embedded.server import EmbeddedServer, open_log

START_TIMEOUT_S = 120.0  # recovery after a kill replays the write-ahead log first
POLL_S = 0.01
MAX_CONNECTIONS = 200
PID_FILE_STATUS_LINE = 7  # miscadmin.h: LOCK_FILE_LINE_PM_STATUS, counted from 0

TUNING = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": str(MAX_CONNECTIONS),
    "shared_buffers": "64MB",
    "max_parallel_workers_per_gather": "0",  # /dev/shm is small in containers
    "jit": "off",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
WITHOUT_FSYNC = {"fsync": "off", "full_page_writes": "off"}


class EmbeddedPostgres(EmbeddedServer):
    """One PostgreSQL server over the folder `home`; one process at a time owns the folder.

    Without `fsync` a crash of the machine may lose the database (a crash of the server does not):
    for tests.
    """

    stop_signal = signal.SIGINT

    def __init__(self, home: Path, *, port: int | None = None, fsync: bool = True) -> None:
        super().__init__(port)
        self.home = home.absolute()
        self.log_path = self.home / "postgres.log"
        self._fsync = fsync
        self._lock: IO[str] | None = None

    @property
    def dsn(self) -> str:
        """The URL of the database, with its password."""
        password = (self.home / "password").read_text().strip()
        return f"postgresql://{ROLE}:{password}@{self.address}/{DATABASE}"

    def start(self) -> None:
        """Make the database if there is none, and return when the server takes connections.

        Raises EmbeddedServerError where that is not possible, with the place and the fix.
        """
        self.home.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._take_lock()
        try:
            user = server_user(self._data)
            binaries = readable_binaries(self.home, user.uid if user.switch else None)
            make_password(self.home)
            if not self._data.exists():
                initialise(self.home, binaries, user, fsync=self._fsync)
            self._end_leftovers()
            self._launch(binaries, user)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server: connections are cut, what is committed stays. Harmless if it is down."""
        super().stop()
        if self._lock is not None:
            forget_binaries(self.home)
            self._lock.close()
            self._lock = None

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = (self.home / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedServerError(
                f"The database in {self.home} is in use by another process: stop that one first."
            ) from None
        self._lock = lock

    def _launch(self, binaries: Path, user: ServerUser) -> None:
        settings = TUNING | {"port": str(self.port)} | ({} if self._fsync else WITHOUT_FSYNC)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open_directory(self._data) as data, open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                [str(binaries / "bin/postgres"), "-D", fd_path(data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(data,),
                env=server_environment(),
                cwd="/",
                start_new_session=True,
                preexec_fn=dying_with_me(signal.SIGINT),
                **user.popen_options(),
            )
        self._await_ready(self._process)

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        where = f"PostgreSQL on {self.address} over {self._data}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            lines = self._pid_file()
            ready = len(lines) > PID_FILE_STATUS_LINE and lines[PID_FILE_STATUS_LINE] == "ready"
            if ready and lines[0] == str(process.pid):
                return
            if process.poll() is not None:
                raise EmbeddedServerError(f"{where} ended at its start: {self._last_output()}")
            time.sleep(POLL_S)
        raise EmbeddedServerError(
            f"{where} was not ready after {START_TIMEOUT_S:.0f} s: see {self.log_path}."
        )

    def _last_output(self) -> str:
        text = self.log_path.read_bytes()[-4000:].decode(errors="replace")
        lines = text.splitlines()
        notices = [
            line for line in lines if any(w in line for w in ("FATAL", "HINT", "LOG:  could"))
        ]
        return " / ".join((notices or lines)[-3:]) + f" (the whole log: {self.log_path})"

    def _pid_file(self) -> list[str]:
        try:
            text = (self._data / "postmaster.pid").read_text()
        except FileNotFoundError:
            return []
        return [line.strip() for line in text.splitlines()]

    def _end_leftovers(self) -> None:
        """Own the folder alone; then the old pid file has no meaning any more."""
        end_leftovers(self._data, "postgres", self.stop_signal, self.stop_timeout_s)
        (self._data / "postmaster.pid").unlink(missing_ok=True)
