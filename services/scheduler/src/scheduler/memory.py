"""A Scheduler process's memory, as leader or standby: the state, the nodes' rows and the clock. It
is rebuilt from the database and the nodes' reports.
"""

import time
from collections.abc import Callable

from muster.db import Connection

from scheduler import store
from scheduler.configuring import Configuring
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.stored import Stored
from scheduler.pauses import Collector
from scheduler.renewing import restore_nodes
from scheduler.store.nodes import KnownNode
from scheduler.store.record import End
from scheduler.watch import Watch


class Memory:
    """``blank`` makes a state without hardware. The hardware takes long, and only a leader or a
    follower needs it. ``known``: the committed rows of nodes. ``recorded``: the record's end.
    ``last_at``: the latest answer of ``moment``.
    """

    def __init__(
        self,
        watch: Watch,
        configuring: Configuring,
        blank: Callable[[], Stored],
        collector: Collector | None,
    ) -> None:
        self.settings = watch.settings
        self.metrics = watch.metrics
        self.watch = watch
        self.configuring = configuring
        self.known: dict[str, KnownNode] = {}
        self.recorded = End()
        self.last_at = 0.0
        self._blank = blank
        self._collector = collector
        self._tidied_at = 0.0
        self._clock = (0.0, 0.0)

    @property
    def state(self) -> Stored:
        """The present state."""
        return self.watch.state

    def at(self) -> float:
        """Seconds since 1970, of a clock that outlives this process and never goes back."""
        wall, since = self._clock
        return round(wall + time.monotonic() - since, 3)

    def moment(self) -> float:
        """The same, and later than every earlier answer."""
        self.last_at = max(self.at(), round(self.last_at + 0.001, 3))
        return self.last_at

    async def read_clock(self, conn: Connection) -> None:
        """Continue from the database's clock and the record's end."""
        self.recorded = await store.record.end(conn)
        self.last_at = max(self.last_at, self.recorded.at)
        now = time.monotonic()  # before the query: never behind the database's
        self._clock = max(await store.gangs.clock(conn), self.recorded.at), now

    async def load(self, conn: Connection, *, leaves_out: bool = False) -> None:
        """Rebuild memory: first the nodes' reports, then the database. Raises ConfigError if the
        cluster is invalid, unless it ``leaves_out`` the setting.

        Placements and gangs are loaded in parts, between which a leader renews its lead.
        """
        if self._collector is not None:
            self._collector.hold()
        now = time.monotonic()
        state, limit = self._blank(), self.settings.load_gangs
        await self.read_clock(conn)
        nodes = await store.nodes.load_nodes(conn)
        restore_nodes(state, nodes)
        state.run_times.restore(await store.run_times.load(conn))
        after = ""
        while holds := await store.gangs.load_holds(conn, after, limit):
            state.restore_holds(holds, now)
            after = holds[-1].pod
        self.watch.pass_on(state)
        try:
            await self.configuring.make(conn, state, self.at())
        except ConfigError as error:
            if not leaves_out:
                raise
            await self.configuring.make_without(state, self.at(), error)
        after = ""
        while gangs := await store.gangs.load_gangs(conn, after, limit):
            for gang in gangs:
                state.restore_gang(gang, now, self.at())
            after = gangs[-1].request.gang
        state.restore_usage(await store.usage.load(conn))
        state.restore_preemptions(await store.preemptions.load(conn))
        state.patient_until = self.at() + self.settings.lease_timeout_s
        kept = await store.reservations.load(conn)
        self.known = {node.node: node for node in nodes}
        self.watch.adopt(state)
        state.keep_up(time.monotonic())  # cells are reserved on nodes that were heard
        state.restore_reservations(kept)
        if self._collector is not None:
            self._collector.filled()

    def tidy(self, *, is_idle: bool) -> None:
        """Collect garbage if nothing waits for it, or if the last time is long ago."""
        now = time.monotonic()
        if self._collector is None or now - self._tidied_at < self.settings.collect_s:
            return
        self._tidied_at = now
        if is_idle and self._collector.is_settling_due:
            self._collector.settle()
        else:
            self._collector.tidy()
