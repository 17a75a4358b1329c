"""`muster events redrive` and `resync`: an operator has messages republished, by the services,
whose messages are in the database, and by agents.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from muster.bus import Outgoing
from muster.contracts.notices import REDRIVE_SETTING, RESYNC_SETTING, SettingChanged
from muster.contracts.topics import TOPICS, Service
from muster.db import Connection, open_pool
from muster.records import headers
from muster.recovery import redrive as redrive_messages
from muster.recovery import resync_all
from muster.settings import DatabaseSettings

from cli.client import CommandError, Exit
from cli.commands.events import TIMEOUT_MS, kafka_settings
from cli.home import find_home
from cli.output import print_line
from cli.standalone.state import database_url

SENDERS = (Service.REST, Service.LAUNCHER, Service.SCHEDULER, Service.ALERTING)
SETTINGS = "settings-changed"


def redrive() -> None:
    """Republish messages that a reader rejected, once the cause is fixed."""
    _on_each_schema(redrive_messages, "republished")
    asyncio.run(_ask_by_setting(REDRIVE_SETTING))


def resync() -> None:
    """After a restored backup: republish the latest message of every open subject."""
    _on_each_schema(resync_all, "to be acknowledged again")
    asyncio.run(_ask_by_setting(RESYNC_SETTING))


def _on_each_schema(
    work: Callable[[Connection, Service], Coroutine[Any, Any, int]], done: str
) -> None:
    url = os.environ.get("MUSTER_DATABASE_URL") or database_url(find_home())
    if url is None:
        raise CommandError(
            Exit.USAGE, "There is no database of Muster's own here: set MUSTER_DATABASE_URL."
        )

    async def each() -> None:
        for service in SENDERS:
            settings = DatabaseSettings(database_url=url)
            pool = await open_pool(settings, service.value)
            try:
                async with pool.acquire() as connection:
                    count = await work(connection, service)
                print_line(f"{service.value}: {count} {done}")
            finally:
                await pool.close()

    try:
        asyncio.run(each())
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise CommandError(Exit.UNREACHABLE, f"The database can't be used: {error}") from error


async def _ask_by_setting(setting: str) -> None:
    """Agents have no database; they get it as a setting of the cluster. So does REST, which
    publishes its settings above their old revisions at a resync.
    """
    settings, now = kafka_settings(), time.time()
    message = SettingChanged(setting=setting, revision=int(now * 1000), value={})
    value, event_id = message.model_dump_json().encode(), f"cli/{setting}/{message.revision}"
    record = Outgoing(SETTINGS, setting, value, event_id, now)
    made = headers(TOPICS[SETTINGS], record, "cli")
    producer = AIOKafkaProducer(**settings.kafka_client(), request_timeout_ms=TIMEOUT_MS)
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await producer.start()
            await producer.send_and_wait(
                record.topic,
                value,
                record.key.encode(),
                headers=[(name, value.encode()) for name, value in made.items()],
            )
    except (KafkaError, TimeoutError) as error:
        raise CommandError(
            Exit.UNREACHABLE,
            f"The agents were not asked: Kafka does not answer at"
            f" {settings.kafka_bootstrap}"
            f" ({error or 'too late'}).",
        ) from error
    finally:
        await producer.stop()
    print_line("agents: asked")
