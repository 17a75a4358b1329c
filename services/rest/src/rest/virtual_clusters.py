"""The Scheduler's last answer about virtual clusters. REST asks now and then, and where a name is
not among them. It stores none. Before the first answer it checks no names, and the Scheduler
refuses jobs that can't run.
"""

import asyncio
import time
from collections.abc import Iterable

import structlog
from muster.errors import Rejected, Transient
from pydantic import ValidationError

from rest.domain.virtual_clusters import VirtualClusters, no_virtual_cluster
from rest.peers import Peers
from rest.settings import RestSettings

_log = structlog.get_logger()

PATH = "/virtual-clusters"


class KnownVirtualClusters:
    """The last answer, and a fresh one where it can be had."""

    def __init__(self, peers: Peers, settings: RestSettings) -> None:
        self._peers = peers
        self._settings = settings
        self._asking = asyncio.Lock()
        self._asked_at = -settings.virtual_clusters_again_s
        self.last: VirtualClusters | None = None

    async def ask(self) -> VirtualClusters:
        """What there is now, else what was there last.

        Raises Transient where the Scheduler never answered, Rejected where there is none to ask.
        """
        if not self._settings.scheduler_urls:
            message = "The Scheduler can't be read: MUSTER_SCHEDULER_URL is not set."
            raise Rejected("NotConfiguredError", message)
        try:
            self.last = await self._ask()
        except Transient:
            if self.last is None:
                raise
        return self.last

    async def having(self, name: str) -> VirtualClusters | None:
        """The last answer; a newer one where it has no such virtual cluster, which may be new."""
        if self.last is None or name in self.last.virtual_clusters:
            return self.last
        async with self._asking:
            is_due = time.monotonic() >= self._asked_at + self._settings.virtual_clusters_again_s
            if is_due and name not in self.last.virtual_clusters:
                await self.ask()
                self._asked_at = time.monotonic()
        return self.last

    async def check(self, names: Iterable[str]) -> None:
        """Raises Rejected where there is none of a name, as far as that is known."""
        for name in names:
            known = await self.having(name)
            if known is not None and name not in known.virtual_clusters:
                raise no_virtual_cluster(name, known.virtual_clusters)

    async def run(self) -> None:
        """Ask now and then, until cancelled."""
        while True:
            try:
                self.last = await self._ask()
            except Transient as error:
                _log.info("virtual clusters are as they were", reason=str(error))
            await asyncio.sleep(self._settings.virtual_clusters_every_s)

    async def _ask(self) -> VirtualClusters:
        answer = await self._peers.ask_scheduler(PATH)
        if answer is None:
            raise Transient("The Scheduler's virtual clusters can't be read. Try again later.")
        try:
            return VirtualClusters.model_validate(answer)
        except ValidationError as error:
            raise Transient("The Scheduler's answer can't be read.") from error
