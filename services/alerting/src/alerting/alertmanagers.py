"""Posts Muster's alerts to one of the operator's Alertmanagers, which groups and routes them.

Each replica posts all firing alerts at each change and each minute. Alertmanager knows an alert by
its labels, so a repeat changes nothing, and one that was restarted learns all again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import aiohttp
import structlog
from muster.address_guard import public_authorities
from muster.db import Pool, is_transient
from muster.service import Runtime
from yarl import URL

from alerting.domain.events import Alert
from alerting.domain.rendering.alertmanager import posted
from alerting.metrics import AlertingMetrics
from alerting.receivers.http import private_authority
from alerting.settings import AlertingSettings
from alerting.store import alerts

_log = structlog.get_logger()

PART = 1_000
"""The most alerts in one request."""
GATHER_S = 1.0
"""What changes within this time is posted together."""


class Alertmanager:
    """``changed`` is to be set when alerts have changed."""

    def __init__(
        self,
        url: URL,
        pool: Pool,
        settings: AlertingSettings,
        metrics: AlertingMetrics,
    ) -> None:
        self.changed = asyncio.Event()
        self._settings = settings
        self._pool = pool
        self._host = f"{url.host}:{url.explicit_port}" if url.explicit_port else url.host
        self._url = url / "api/v2/alerts"
        self._up = metrics.alertmanager_up.labels(self._host)
        self._was_up: bool | None = None

    async def run(self) -> None:
        """Post until cancelled."""
        settings = self._settings
        tls = private_authority(settings.webhook_ca_file)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=public_authorities() if tls is None else tls),
            timeout=aiohttp.ClientTimeout(settings.webhook_timeout_s),
        ) as http:
            while True:
                self.changed.clear()
                self._note(await self._post(http))
                with suppress(TimeoutError):
                    async with asyncio.timeout(settings.alertmanager_wait_s):
                        await self.changed.wait()
                        await asyncio.sleep(GATHER_S)

    async def _post(self, http: aiohttp.ClientSession) -> str | None:
        """Why it failed, or None. What fails is posted again with the next."""
        now, wait_s = datetime.fromtimestamp(time.time(), UTC), self._settings.alertmanager_wait_s
        try:
            async with self._pool.acquire() as conn:
                found = await alerts.own_alerts(conn, wait_s)
            parts = [found[start:][:PART] for start in range(0, len(found), PART)]
            refused = [it for part in parts if (it := await self._refused(http, part, now))]
            return refused[0] if refused else None  # all were posted, also after a refused one
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            if not is_transient(error):
                raise
            return str(error) or type(error).__name__

    async def _refused(
        self, http: aiohttp.ClientSession, part: Sequence[Alert], now: datetime
    ) -> str | None:
        """The answer, where it is no success."""
        wait_s, link = self._settings.alertmanager_wait_s, self._settings.link
        body = [posted(it, now, wait_s, link) for it in part]
        # A redirected POST may become a GET, which succeeds and brings no alert.
        async with http.post(self._url, json=body, allow_redirects=False) as got:
            if 200 <= got.status < 300:
                return None
            return f"{got.status} {(await got.text(errors='replace'))[:200]}"

    def _note(self, problem: str | None) -> None:
        is_up = problem is None
        self._up.set(is_up)
        if is_up is not self._was_up:
            if problem is None:
                _log.info("Alertmanager takes alerts", alertmanager=self._host)
            else:
                _log.warning("Alertmanager takes no alerts", alertmanager=self._host, why=problem)
        self._was_up = is_up


def posting(
    runtime: Runtime, settings: AlertingSettings, metrics: AlertingMetrics
) -> Callable[[], None]:
    """Post to all Alertmanagers while the service runs; to be called when alerts have changed."""
    found = [Alertmanager(it, runtime.pool, settings, metrics) for it in settings.alertmanagers()]
    for alertmanager in found:
        runtime.spawn("alertmanager", alertmanager.run)

    def changed() -> None:
        for alertmanager in found:
            alertmanager.changed.set()

    return changed
