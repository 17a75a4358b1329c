"""The cluster's sources: its file or the nodes, and the setting that administrators publish through
REST. Changes rebuild the cluster while gangs run.

The newest valid setting counts. The leader reads it from the bus. After a restart, and on a
standby, the last one in force comes from the database.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from muster.db import Connection

from scheduler import store
from scheduler.cluster_file import Loaded
from scheduler.domain.configured import Setting
from scheduler.domain.core.config import ClusterConfig, Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.plans import Plan, made, made_with_line
from scheduler.domain.stored import Stored
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()

Wanted = tuple[ClusterConfig | None, Setting | None]
"""The file and the setting."""


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """The cluster's file as it is now can't be read: ``problems``, since ``at`` seconds."""

    problems: list[str]
    at: float


class Configuring:
    """``file``: its last content. ``received``: the newest setting on the bus, None: none was
    received. ``stored``: the last one in force. ``problems``: the reasons why the wanted
    configuration is not in force. ``rejected``: the file is another by now, and wrong.
    """

    def __init__(
        self, settings: SchedulerSettings, metrics: SchedulerMetrics, file: Loaded | None
    ) -> None:
        self.file = file
        self.rejected: RejectedFile | None = None
        self.received: Setting | None = None
        self.stored: Setting | None = None
        self.problems: tuple[Finding, ...] = ()
        self._settings = settings
        self._metrics = metrics
        self._tried: Wanted = (self.config, None)
        self._remake_from = 0.0

    @property
    def config(self) -> ClusterConfig | None:
        """The cluster's file, as it was read last; None: the nodes make the cluster."""
        return None if self.file is None else self.file.config

    @property
    def setting(self) -> Setting | None:
        """The setting: the newest received one, else the stored one."""
        return self.stored if self.received is None else self.received

    # Rebuilding memory.

    async def make(self, conn: Connection, state: Stored, at: float) -> None:
        """Build a state's cluster from the file and the stored setting. Raises ConfigError."""
        self.stored = await store.configuration.load(conn)
        plan = state.plan(self.config, self.stored)
        state.adopt(plan, await asyncio.to_thread(made, state.core, plan, at))
        self._note(())
        self._note_version(state)

    async def make_without(self, state: Stored, at: float, error: ConfigError) -> None:
        """The same without the setting, which is invalid for the present hardware: this is better
        than no decisions. No gang is refused meanwhile. Raises the error if there is no setting.
        """
        if self.stored is None or self.stored.content is None:
            raise error
        plan = replace(state.plan(self.config, self.stored), is_honoured=False)
        state.adopt(plan, await asyncio.to_thread(made, state.core, plan, at))
        self._refuse(error, "the configuration can't be applied; it is ignored until it can")

    def begin(self, state: Stored) -> None:
        """Decisions begin with this state."""
        self._tried = (state.file, state.made_of.setting)
        self._note_version(state)

    # Changes, between two cycles.

    async def remake(
        self, state: Stored, received: Setting | None, at: Callable[[], float]
    ) -> None:
        """Apply changes of the file, the setting and the nodes. A thread builds the cluster while
        heartbeats arrive; one step applies it. The caller holds the decider's lock, so that
        requests which would change the state wait.
        """
        self.received = received or self.received
        started, wanted = time.monotonic(), (self.config, self.setting)
        is_due = state.is_outdated and started >= self._remake_from
        if not (is_due or _are_others(wanted, self._tried)):
            return
        self._tried = wanted
        try:
            await self._take(state, state.plan(*wanted), at())
        except ConfigError as error:
            self._refuse(
                error, "the configuration can't be applied; the previous one stays in force"
            )
            if state.is_outdated:
                await self._keep(state, wanted, at())
        else:
            self._note(())
        self._note_version(state)
        took = time.monotonic() - started
        self._remake_from = started + took / self._settings.remake_share

    async def _take(self, state: Stored, plan: Plan, at: float) -> None:
        state.adopt(plan, *await asyncio.to_thread(made_with_line, state.core, plan, at))
        self._metrics.configs.labels("taken").inc()

    async def _keep(self, state: Stored, wanted: Wanted, at: float) -> None:
        """Keep the previous configuration with the present nodes, if that is valid."""
        before = state.made_of
        plan = replace(state.plan(before.file, before.setting), is_honoured=before.is_honoured)
        is_another = _are_others(wanted, (before.file, before.setting)) or not before.is_honoured
        try:
            if is_another:
                await self._take(state, plan, at)
        except ConfigError as error:
            _log.error("new nodes can't be taken", why=str(error))
            is_another = False
        if not is_another:
            state.keep_config(plan)

    # The transaction of the next decisions stores the setting in force.

    def is_unsaved(self, state: Stored) -> bool:
        """The state was built from another setting than the stored one."""
        return _revision(state.made_of.setting) != _revision(self.stored)

    async def save(self, conn: Connection, state: Stored) -> None:
        """Store the setting in force. If the transaction fails, memory is rebuilt."""
        setting = state.made_of.setting
        if setting is not None and self.is_unsaved(state):
            await store.configuration.save(conn, setting)
            self.stored = setting

    # Log and metrics.

    def _refuse(self, error: ConfigError, what: str) -> None:
        self._metrics.configs.labels("refused").inc()
        if error.findings != self.problems:  # every change of nodes tries again
            _log.error(what, why=str(error))
        self._note(error.findings)

    def _note(self, problems: tuple[Finding, ...]) -> None:
        self.problems = problems
        self._metrics.config_behind.set(bool(problems))

    def _note_version(self, state: Stored) -> None:
        made_of = state.made_of
        version = made_of.setting.version if made_of.setting and made_of.is_honoured else None
        self._metrics.config_version.set(version or 0)


def _are_others(wanted: Wanted, before: Wanted) -> bool:
    return wanted[0] is not before[0] or _revision(wanted[1]) != _revision(before[1])


def _revision(setting: Setting | None) -> int | None:
    return None if setting is None else setting.revision
