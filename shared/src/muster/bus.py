"""The bus: Kafka as Muster uses it. This module publishes records and watches the bus's identity.

Records may get lost or arrive twice: the exchange handles both. So a lost bus costs only delay.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts, create_conn

from muster.bus_identity import read_identity
from muster.channels import Channel
from muster.channels import Outgoing as Outgoing
from muster.channels import partition_of as partition_of
from muster.contracts.acls import topics_of
from muster.contracts.model import Model
from muster.contracts.topics import Service
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.publisher import BUS_ERRORS as BUS_ERRORS
from muster.publisher import Outcome, Publisher
from muster.refusals import NOT_AUTHORIZED, Refusals
from muster.settings import ServiceSettings
from muster.telemetry import current_traceparent
from muster.topics_admin import set_up_topics

_log = structlog.get_logger()

MAKE_TOPICS = "make topics"
LOG_IN = "log in"

LINGER_FROM = 8
LINGER_S = 0.015
"""A batch of this many records is followed by more in a moment: fewer, larger transactions."""


class Bus:
    """A service's producer, and the watch over the bus's identity. A process whose ``name`` is no
    service's only follows topics, which services make.

    ``identity`` is the id of the bus, once its topics are configured as Muster needs them.
    ``on_new_bus`` hooks are called when a different bus answers: the records of the old one are
    gone.
    """

    def __init__(self, settings: ServiceSettings, name: str, metrics: PlumbingMetrics) -> None:
        self.settings = settings
        self.name = name
        self.metrics = metrics
        self.identity: str | None = None
        self.is_up = False
        self._complaint: str | None = None
        self.on_new_bus: list[Callable[[], None]] = []
        self.refusals = Refusals(settings.kafka_user, metrics)
        self._publisher = Publisher(settings, name, metrics, self.refusals)
        self.on_open = self._publisher.on_open

    @property
    def me(self) -> Service:
        """The service, which sends and has a consumer group."""
        assert isinstance(self.name, Service), "this process only follows topics"
        return self.name

    async def run(self) -> None:
        """Watch the bus and retry records that it did not take, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._publisher.run())

    async def _watch(self) -> None:
        client: AIOKafkaClient | None = None
        try:
            while not is_cancelled():  # a client that closes may swallow it
                try:
                    if client is None:
                        client = AIOKafkaClient(**self.settings.kafka_client())
                        await client.bootstrap()
                    async with asyncio.timeout(self.settings.bus_timeout_s):
                        await self._look(client)
                except (*BUS_ERRORS, asyncio.CancelledError) as error:
                    if is_cancelled():
                        raise
                    self._mark(False)
                    if client is not None:
                        await client.close()
                    client = None
                    self._note(await self._reason() or error)
                await asyncio.sleep(self.settings.bus_watch_s)
        finally:
            if client is not None:
                await client.close()

    @property
    def away(self) -> frozenset[Channel]:
        """The channels that take no records now; ``on_open`` hooks are called when one opens."""
        return frozenset(self._publisher.away)

    async def close(self) -> None:
        """Close the producer. The next publish opens another one."""
        await self._publisher.close()

    async def _look(self, client: AIOKafkaClient) -> None:
        found = await read_identity(client)
        before = self.identity
        lacks_topics = self._publisher.lacks_topics or MAKE_TOPICS in self.refusals.reasons
        if found.id != before or lacks_topics:
            self._publisher.lacks_topics = False
            topics = topics_of(self.name)
            if topics and not found.is_embedded:
                made = await set_up_topics(self.settings, topics)
                self.refusals.note(MAKE_TOPICS, made.refused)
                if made.topics:
                    _log.info("made topics", topics=made.topics)
        self.identity = found.id
        self._note(None)
        if before not in (None, found.id):
            _log.warning("the bus is another one", before=before, now=found.id)
            for hook in self.on_new_bus:
                hook()

    async def _reason(self) -> BaseException | None:
        """Why no secure connection is made: aiokafka only logs it."""
        try:
            options = self.settings.kafka_client()
            if options["security_protocol"] == "PLAINTEXT":
                return None
            for host, port, _ in collect_hosts(options.pop("bootstrap_servers")):
                async with asyncio.timeout(self.settings.bus_timeout_s):
                    (await create_conn(host, port, **options)).close()
        except BUS_ERRORS as error:
            return error
        return None

    def _note(self, error: BaseException | None) -> None:
        complaint = None if error is None else str(error) or type(error).__name__
        self.refusals.note(LOG_IN, complaint if isinstance(error, NOT_AUTHORIZED) else None)
        if complaint is not None and complaint != self._complaint:
            _log.warning("the bus does not answer", error=complaint)
        elif complaint is None and not self.is_up:
            _log.info("the bus answers", bootstrap=self.settings.kafka_bootstrap)
        self._complaint = complaint
        self._mark(complaint is None)

    def _mark(self, is_up: bool) -> None:
        self.is_up = is_up
        self.metrics.bus_up.set(is_up)

    async def publish(self, records: Sequence[Outgoing]) -> list[Outcome]:
        """Publish records. For each: None if the bus has it, Transient if it can't take it now,
        else why it is rejected for good. Records of one key keep their order.
        """
        return await self._publisher.publish(records)

    async def broadcast(
        self, topic: str, key: str, model: Model | None, *, event_id: str, at: float
    ) -> None:
        """Publish a broadcast message at once; None removes its key. Raises Transient where the bus
        does not take it.
        """
        value = None if model is None else model.model_dump_json(exclude_none=True).encode()
        record = Outgoing(topic, key, value, event_id, at, current_traceparent())
        (failure,) = await self.publish([record])
        if failure is not None:
            raise Transient(f"the bus takes no {topic}: {failure}") from failure


def is_cancelled() -> bool:
    """Whether this task was cancelled, also where a library caught the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
