"""REST publishes settings. On receivers-changed: subscriptions and addresses to confirm. On
settings-changed: orders about nodes, virtual clusters and policy.

It publishes a setting when it changes, and all of them every few minutes, for receivers that lost
one. For a while, removed settings are published as removed.

REST also receives what it has published. A higher revision than its own, or a setting that it does
not have, is from before a backup was restored. Then it continues above the clock, as the exchange
does, or publishes that the setting is removed.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

import structlog
from muster.bus import Bus
from muster.contracts.model import Model
from muster.contracts.notices import RESYNC_SETTING, SettingChanged
from muster.db import Pool, is_transient
from muster.newest import revision_of
from muster.records import Received

from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store.settings import (
    RECEIVER_PREFIXES,
    Published,
    is_own,
    lift_revisions,
    load_published,
)

_log = structlog.get_logger()

SETTINGS, RECEIVERS = "settings-changed", "receivers-changed"
TOPICS = (SETTINGS, RECEIVERS)
BELIEVABLE = 2**53
"""Revisions below this are somebody's: milliseconds of a clock reach it in 285,000 years."""


class SettingsPublisher:
    """Publishes settings on the bus."""

    def __init__(self, pool: Pool, bus: Bus, settings: RestSettings, metrics: RestMetrics) -> None:
        self._pool = pool
        self._bus = bus
        self._settings = settings
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._published: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._received_removed: dict[str, int] = {}
        self._resync = 0
        self._all_at = 0.0
        bus.on_new_bus.append(self._on_new_bus)

    def wake(self) -> None:
        """Something has changed."""
        self._changed.set()

    def resync(self, floor: int) -> None:
        """The database was restored: revisions go on above this one."""
        self._resync = max(self._resync, floor)
        self._changed.set()

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting that this process, another replica, or a database before its restore has
        published; or an operator's request to publish all settings.
        """
        setting = record.key or ""
        revision = model.revision if isinstance(model, SettingChanged) else 0
        if setting == RESYNC_SETTING:
            self.resync(revision)
        elif not is_own(setting):
            return
        elif model is None:
            self._received.pop(setting, None)
            self._received_removed[setting] = revision_of(record, None) or 0
        else:
            self._received[setting] = max(self._received.get(setting, 0), revision)
        if self._published.get(setting) != revision:
            self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled: what has changed at once, all of it on its rhythm."""
        wait = self._settings.retry_first_s
        while True:
            self._changed.clear()
            try:
                await self._publish_due()
                wait = self._settings.retry_first_s
                pause = max(0.0, self._all_at - time.monotonic())
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("settings could not be published", error=str(error))
                pause, wait = wait, min(wait * 2, self._settings.retry_longest_s)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _publish_due(self) -> None:
        if time.monotonic() >= self._all_at:
            self._published.clear()
        received = dict(
            self._received
        )  # before the rows, which are written before they are published
        async with self._pool.acquire() as conn:
            rows = await load_published(conn)
            if behind := self._behind(rows, received):
                _log.info("settings are published above older revisions", settings=len(behind))
                await lift_revisions(conn, behind)
                rows = await load_published(conn)
        known = {row.setting for row in rows}
        unknown = received.keys() - known
        gone = self._received_removed  # a revision without a row is compared with nothing
        self._received_removed = {each: gone[each] for each in gone.keys() & known}
        for row in [*rows, *(Published(setting, received[setting], None) for setting in unknown)]:
            if self._published.get(row.setting) != row.revision:
                await self._publish(row)
                self._published[row.setting] = row.revision
        if time.monotonic() >= self._all_at:
            rhythm = self._settings.settings_repeat_s
            self._all_at = time.monotonic() + rhythm * random.uniform(0.9, 1.0)  # noqa: S311 - spread

    def _behind(self, rows: Sequence[Published], received: Mapping[str, int]) -> dict[str, int]:
        """The revisions that settings must get, to be above those published before."""
        gone = self._received_removed
        known = {
            row.setting: max(received.get(row.setting, 0), gone.get(row.setting, 0), self._resync)
            for row in rows
        }
        clock_ms = int(time.time() * 1000)  # more may still be received
        return {
            row.setting: max(clock_ms, known[row.setting] + 1)
            for row in rows
            if row.revision < known[row.setting] < BELIEVABLE
        }

    def _on_new_bus(self) -> None:
        self._all_at = 0.0
        self._changed.set()

    async def _publish(self, row: Published) -> None:
        model, setting = None, row.setting
        if row.content is not None:
            model = SettingChanged(setting=setting, revision=row.revision, value=row.content)
        event_id = f"rest/setting/{setting}/{row.revision}"
        topic = RECEIVERS if setting.startswith(RECEIVER_PREFIXES) else SETTINGS
        await self._bus.broadcast(topic, setting, model, event_id=event_id, at=time.time())
        self._metrics.settings_published.inc()
