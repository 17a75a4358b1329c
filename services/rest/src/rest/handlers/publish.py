"""Subscriptions on settings-changed: said when they change, and again every few minutes, so that
whoever lost them has them soon. Removed ones are said as removed for a while.
"""

import asyncio
import random
import time

import structlog
from muster.bus import Bus
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import SUBSCRIPTION_SETTING
from muster.db import Pool, is_transient
from muster.errors import Transient

from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store.subscriptions import Published, load_published

_log = structlog.get_logger()

TOPIC = "settings-changed"


class SettingsPublisher:
    """Says subscriptions on the bus."""

    def __init__(self, pool: Pool, bus: Bus, settings: RestSettings, metrics: RestMetrics) -> None:
        self._pool = pool
        self._bus = bus
        self._settings = settings
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._said: dict[str, int] = {}
        self._all_at = 0.0
        bus.on_new_bus.append(self._on_new_bus)

    def wake(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled: what has changed at once, all of it on its rhythm."""
        wait = self._settings.retry_first_s
        while True:
            self._changed.clear()
            try:
                await self._say_due()
                wait = self._settings.retry_first_s
                pause = max(0.0, self._all_at - time.monotonic())
            except Exception as error:
                if not (is_transient(error) or isinstance(error, Transient)):
                    raise
                _log.warning("settings could not be published", error=str(error))
                pause, wait = wait, min(wait * 2, self._settings.retry_longest_s)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _say_due(self) -> None:
        if time.monotonic() >= self._all_at:
            self._said.clear()
        async with self._pool.acquire() as conn:
            rows = await load_published(conn)
        for row in rows:
            if self._said.get(row.id) != row.revision:
                await self._say(row)
                self._said[row.id] = row.revision
        if time.monotonic() >= self._all_at:
            rhythm = self._settings.settings_repeat_s
            self._all_at = time.monotonic() + rhythm * random.uniform(0.9, 1.0)  # noqa: S311 - spread

    def _on_new_bus(self) -> None:
        self._all_at = 0.0
        self._changed.set()

    async def _say(self, row: Published) -> None:
        setting = f"{SUBSCRIPTION_SETTING}{row.id}"
        model = None
        if row.content is not None:
            model = SettingChanged(setting=setting, revision=row.revision, value=row.content)
        event_id = f"rest/setting/{setting}/{row.revision}"
        await self._bus.say(TOPIC, setting, model, event_id=event_id, at=time.time())
        self._metrics.settings_said.inc()
