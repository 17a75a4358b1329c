"""`muster up` from its start to its end: lock, start, log in, show, and stop at a signal."""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.passwords import ADMIN
from muster.process import make_process_private

from cli.client import Client, CommandError, Exit
from cli.embedded.process import EmbeddedServerError, is_alive
from cli.home import (
    Credentials,
    find_home,
    read_credentials,
    read_json,
    write_credentials,
    write_json,
    write_private,
)
from cli.logins import log_in, revoke
from cli.separation import separation
from cli.standalone.demo import follow_demo
from cli.standalone.logs import keep_bounded
from cli.standalone.screen import Screen
from cli.standalone.settings import Options, UpSettings
from cli.standalone.state import HomeInUseError, HomeState, owning
from cli.standalone.whole import Whole

STATUS_S = 1.0
MIB = 1 << 20
LAST_END_S, LAST_POLL_S = 20.0, 0.1
RUNNING_FILE = "running.json"
OPEN_BROKER = "its own, without log-in: before a second user comes, start with --kafka apache"
OPEN_PROMETHEUS = "every process of this machine can read it, names of jobs included"
TOKEN = "token"  # noqa: S105 - a name
"""The secret of the folder's state that commands on this machine use."""


def run_up(settings: UpSettings, options: Options) -> Exit:
    """Run until a signal ends it, or, with `ends_with_demo`, the sample job."""
    make_process_private()  # it has every service's secrets
    home = find_home()
    try:
        with owning(home):
            return asyncio.run(_Up(home, settings, options).run())
    except (HomeInUseError, EmbeddedServerError, ValueError) as error:
        raise CommandError(Exit.FAILED, str(error)) from error
    except OSError as error:  # a full disk, a folder that is none or another's
        raise CommandError(Exit.FAILED, f"Muster can't run over {home}: {error}") from error


def _users(client: Client) -> str:
    try:
        return separation(client, wait=True) or "unknown: the agent has not reported yet"
    except CommandError as error:
        return f"unknown: {error}"


class _Up:
    def __init__(self, home: Path, settings: UpSettings, options: Options) -> None:
        self.home = home
        self.settings = settings
        self.options = options
        self.state = HomeState(home)
        self.screen = Screen()
        self.whole = Whole(home, settings, self.state, options, show=self.screen.show)
        self._last = read_json(home / RUNNING_FILE)
        self._phase = "starting"
        self._written: dict[str, object] = {}
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()

    async def run(self) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        background = [
            asyncio.create_task(self.screen.run(lambda: self.whole.parts)),
            asyncio.create_task(self._publish_status()),
        ]
        try:
            status = await self._until_asked(self._work())
        finally:
            try:
                await self._shut_down()
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                (self.home / RUNNING_FILE).unlink(missing_ok=True)
        self.screen.show("Muster is down; the next start goes on from here.")
        return Exit.INTERRUPTED if self._at_once.is_set() else status

    async def _await_end_of_last(self) -> None:
        """Where the last `muster up` was killed, its parts may still be about to end."""
        pids = [part["pid"] for part in self._last.get("services", {}).values()]
        deadline = time.monotonic() + LAST_END_S
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            await asyncio.sleep(LAST_POLL_S)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._at_once.set()
        else:
            self.screen.show("Stopping; a second signal stops at once.")
        self._asked.set()

    async def _work(self) -> Exit:
        self.screen.show(f"Starting Muster over {self.home}")
        await self._await_end_of_last()
        password = self._first_password()
        await self.whole.start(password)
        folders = [self.home / name for name in ("log", "postgres", "kafka")]
        logs = asyncio.create_task(keep_bounded(folders, self.settings.log_max_mb * MIB))
        try:
            client = await asyncio.to_thread(self._log_in, password)
            self._print_addresses()
            if client is not None:
                users = await asyncio.to_thread(_users, client)
                self.screen.show(f"Users     {users}")
            self.screen.show("Muster is up; Ctrl-C stops it.")
            self._phase = "up"
            self._write_status()
            if client is not None and self._wants_demo():
                status = await self._run_demo(client)
                if self.options.ends_with_demo:
                    return status
            await self._asked.wait()
        finally:
            logs.cancel()
        return Exit.OK

    async def _run_demo(self, client: Client) -> Exit:
        try:
            status = await follow_demo(client, self.screen.show)
        except CommandError as error:
            self.screen.show(f"The sample job was not run: {error}")
            return error.code
        self.state.mark_done("demo")
        return status

    def _wants_demo(self) -> bool:
        if self.options.ends_with_demo:
            return True
        return self.options.demo and not self.state.is_done("demo")

    async def _until_asked(self, work: Coroutine[Any, Any, Exit]) -> Exit:
        """The work's result, or OK where a signal came first."""
        task = asyncio.create_task(work)
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return Exit.OK

    async def _shut_down(self) -> None:
        """Stop cleanly, or at once when a second signal comes meanwhile."""
        self._phase = "stopping"
        stopping = asyncio.create_task(self.whole.stop())
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({stopping, at_once}, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if not stopping.done():
            self.whole.kill()
        await stopping

    def _first_password(self) -> str | None:
        """The admin's password while it may still have to be made known to REST, else None.

        It is on disk only from the first start until the first login, for a kill in between.
        """
        pending = self.home / "first-password"
        if self.state.is_done("login"):
            return None
        if self.settings.admin_password is not None:
            return self.settings.admin_password.get_secret_value()
        if not pending.exists():
            write_private(pending, secrets.token_urlsafe(12))
        return pending.read_text()

    def _log_in(self, password: str | None) -> Client | None:
        """Have a token in MUSTER_HOME, so that commands on this machine just work."""
        assert self.whole.notes is not None
        client = Client(self.whole.notes.rest)
        if password is None:
            stored = read_credentials(self.home, {})
            if not stored.token:  # nobody is logged in here: commands use this folder's token
                write_credentials(self.home, Credentials(client.url, self._token(), ADMIN))
            elif not stored.url.startswith("http://127.0.0.1:"):
                self.screen.show(f"Commands go to {stored.url}, where {stored.user} is logged in.")
            elif stored.url != client.url:  # the same REST on another port
                write_credentials(self.home, replace(stored, url=client.url))
            mine = Client(client.url, self._token())
            try:
                mine.get("/tokens/check")
            except CommandError:
                self.screen.show(
                    "The token `muster up` of this folder was revoked: log in by `muster login`."
                )
                return None
            return mine
        try:
            lasting = _lasting_login(client, password)
        except CommandError as error:
            self.screen.show(f"The local login failed ({error}): log in by `muster login`.")
            return None
        write_credentials(self.home, lasting)
        self.state.keep_secret(TOKEN, lasting.token)
        self.state.mark_done("login")
        (self.home / "first-password").unlink(missing_ok=True)
        if self.settings.admin_password is None:
            self.screen.show(f"The administrator is `{ADMIN}` with the password {password}")
            self.screen.show("  (shown this once; on this machine only users and tokens need it)")
        return Client(client.url, lasting.token)

    def _token(self) -> str:
        """The application token that the first start has made."""
        return self.state.secret(TOKEN)

    def _print_addresses(self) -> None:
        notes = self.whole.notes
        assert notes is not None
        own = {True: "its own", False: "elsewhere"}
        is_open = notes.kafka_is_own and not notes.kafka_is_closed
        broker = OPEN_BROKER if is_open else own[notes.kafka_is_own]
        self.screen.show(f"REST      {notes.rest}/api/v2  (described in /openapi.json)")
        self.screen.show(f"Kafka     {notes.kafka}  ({broker})")
        self.screen.show(f"Database  {notes.database}  ({own[notes.database_is_own]})")
        if notes.simulated_gpus:
            why = "no driver was found" if self.settings.fake_gpus is None else "MUSTER_FAKE_GPUS"
            self.screen.show(f"GPUs      {notes.simulated_gpus} SIMULATED ones ({why})")
        if self.options.monitoring:
            address = notes.addresses["prometheus"]
            self.screen.show(f"Metrics   {address}  (Prometheus; {OPEN_PROMETHEUS})")
        self.screen.show(f"Logs      {self.home / 'log'}")

    async def _publish_status(self) -> None:
        """Tell other commands (`muster status`) what runs, in a file of this folder."""
        while True:
            try:
                self._write_status()
            except OSError as error:
                self.screen.show(f"{self.home / RUNNING_FILE} can't be written: {error.strerror}")
            await asyncio.sleep(STATUS_S)

    def _write_status(self) -> None:
        status = self._status()
        if status != self._written:
            write_json(self.home / RUNNING_FILE, status)
            self._written = status

    def _status(self) -> dict[str, object]:
        notes = self.whole.notes
        return {
            "pid": os.getpid(),
            "phase": self._phase,
            "rest": notes.rest if notes else None,
            "kafka": notes.kafka if notes else None,
            "kafkaIsClosed": bool(notes and notes.kafka_is_closed),
            "database": notes.database if notes else None,
            "simulatedGpus": notes.simulated_gpus if notes else None,
            "services": {
                part.name: {
                    "state": part.state,
                    "pid": part.pid,
                    "restarts": part.restarts,
                    "address": notes.addresses.get(part.name) if notes else None,
                }
                for part in self.whole.parts
            },
        }


def _lasting_login(client: Client, password: str) -> Credentials:
    """An application token that does not expire: a reader of this folder has its database's
    password too, and the token must work after any pause.
    """
    login = log_in(client, ADMIN, password)
    mine = Client(client.url, login.token)
    token = mine.send("POST", "/tokens/application", {"name": "muster up"}).json()["token"]
    revoke(login)
    return Credentials(client.url, token, ADMIN)
