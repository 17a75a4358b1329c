"""What the cluster is to be made of: its file or the nodes, and what administrators have set
through REST; and making it anew as these change, while gangs run.

The newest that can be honoured counts. What is set is taken from the bus; a restart, and who stands
by, has what was taken last from the database.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

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


class Configuring:
    """``file``: as it was read last. ``heard``: the newest setting on the bus, None: nothing was
    said of it. ``stored``: the one that was taken last. ``problems``: why the cluster is not made
    of what is wanted.
    """

    def __init__(
        self, settings: SchedulerSettings, metrics: SchedulerMetrics, file: Loaded | None
    ) -> None:
        self.file = file
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
        """What is set: the newest that was heard, else what was taken last."""
        return self.stored if self.received is None else self.received

    # Memory that is made anew.

    async def make(self, conn: Connection, state: Stored, at: float) -> None:
        """Make the cluster of a state, of the file and the stored setting. Raises ConfigError."""
        self.stored = await store.configuration.load(conn)
        plan = state.plan(self.config, self.stored)
        state.adopt(plan, await asyncio.to_thread(made, state.cluster, plan, at))
        self._note(())
        self._note_version(state)

    async def make_without(self, state: Stored, at: float, error: ConfigError) -> None:
        """The same without what is set, which can't be honoured with the hardware that there is:
        better than no decisions at all. Nobody is refused meanwhile. Raises the error where nothing
        is set.
        """
        if self.stored is None or self.stored.content is None:
            raise error
        plan = replace(state.plan(self.config, self.stored), is_honoured=False)
        state.adopt(plan, await asyncio.to_thread(made, state.cluster, plan, at))
        self._refuse(error, "the configuration can't be applied; it is ignored until it can")

    def begin(self, state: Stored) -> None:
        """Decisions begin with this state."""
        self._tried = (state.file, state.made_of.setting)
        self._note_version(state)

    # Changes, between two cycles.

    async def remake(
        self, state: Stored, received: Setting | None, at: Callable[[], float]
    ) -> None:
        """Take what is new of file and setting, and nodes that are new or of another size. It is
        made in a thread, beside which heartbeats are heard, and taken in one step. The caller holds
        the decider's lock: questions that would change the state meanwhile wait.
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
        state.adopt(plan, *await asyncio.to_thread(made_with_line, state.cluster, plan, at))
        self._metrics.configs.labels("taken").inc()

    async def _keep(self, state: Stored, wanted: Wanted, at: float) -> None:
        """The configuration before goes on, with the nodes that there are now, if it can."""
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

    # What was taken is stored with what is decided next.

    def is_unsaved(self, state: Stored) -> bool:
        """The state is made of another setting than the stored one."""
        return _revision(state.made_of.setting) != _revision(self.stored)

    async def save(self, conn: Connection, state: Stored) -> None:
        """Store what was taken. Where the transaction fails memory is begun anew."""
        setting = state.made_of.setting
        if setting is not None and self.is_unsaved(state):
            await store.configuration.save(conn, setting)
            self.stored = setting

    # What is told of it.

    def _refuse(self, error: ConfigError, what: str) -> None:
        self._metrics.configs.labels("refused").inc()
        if error.findings != self.problems:  # it is tried again as nodes come
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
