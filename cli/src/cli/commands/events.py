"""`muster events`: follow the bus as any listener could; cli.commands.recovery republishes."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaError
from cyclopts import App, Parameter
from muster.contracts.acls import OPERATOR
from muster.contracts.services import SERVICE_STARTED
from muster.contracts.topics import DEAD_LETTER, TOPICS
from muster.settings import KafkaSettings, problems
from pydantic import ValidationError

from cli.client import CommandError, Exit
from cli.commands.session import Output
from cli.embedded.apache import login
from cli.home import find_home, read_json
from cli.output import Format, cut, print_line, printable

CHATTER = ("node-heartbeat", SERVICE_STARTED, "revision-acknowledged", "pod-acknowledged")
BOOKKEEPING = ("revision", "seen", "job", "gang", "epoch", "journal", "boot")
ROWS, VALUE = 2, 48  # of a terminal, for one record; characters of each value
TIMEOUT_MS = 10_000

app = App(
    name="events",
    help="Follow the bus; republish messages.",
    default_parameter=Parameter(negative=()),
)


@app.default
def follow(
    *,
    topic: Annotated[
        list[str] | None, Parameter(help="Only this topic; may be given again.")
    ] = None,
    job: Annotated[
        str | None, Parameter(help="Only what is about this job: user~name, or its id.")
    ] = None,
    from_start: Annotated[bool, Parameter(help="Also what the bus still has.")] = False,
    chatter: Annotated[
        bool, Parameter(help="Heartbeats, beats and acknowledgements, too.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Follow the bus, as a plain consumer without a group, until Ctrl-C."""
    unknown = sorted(set(topic or ()) - {*TOPICS, *(name + DEAD_LETTER for name in TOPICS)})
    if unknown:
        known = ", ".join(TOPICS)
        raise CommandError(
            Exit.USAGE,
            f"There is no topic {unknown[0]}; there are {known}, each with {DEAD_LETTER}.",
        )
    topics = topic or [name for name in TOPICS if chatter or name not in CHATTER]
    if topic is None:
        topics += [name + DEAD_LETTER for name in TOPICS]
    show = _print_record if output is Format.TABLE else _print_json
    asyncio.run(_follow(topics, job, "earliest" if from_start else "latest", show))


app.command(
    "cli.commands.recovery:redrive",
    name="redrive",
    help="Republish messages that a reader rejected, once the cause is fixed.",
)
app.command(
    "cli.commands.recovery:resync",
    name="resync",
    help="After a restored backup: republish the latest message of every open subject.",
)


async def _follow(
    topics: list[str], job: str | None, offset: str, show: Callable[[ConsumerRecord], None]
) -> None:
    settings = kafka_settings()
    # There is nothing to save, and a client that is connecting may swallow a cancellation.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, os._exit, int(Exit.INTERRUPTED))
    is_wanted = about(job)
    consumer = AIOKafkaConsumer(
        *topics,
        **settings.kafka_client(),
        auto_offset_reset=offset,
        request_timeout_ms=TIMEOUT_MS,
    )
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await consumer.start()
        async for record in consumer:
            if is_wanted(record):
                show(record)
    except (KafkaError, TimeoutError) as error:
        raise CommandError(
            Exit.UNREACHABLE,
            f"Kafka does not answer at {settings.kafka_bootstrap} ({error or 'too late'}): "
            "start Muster by `muster up`, or set MUSTER_KAFKA_BOOTSTRAP. The bus is for operators;"
            " users see their jobs by `muster job` and `muster why`.",
        ) from error
    finally:
        await consumer.stop()


def about(job: str | None) -> Callable[[ConsumerRecord], bool]:
    """Which records are about a job. Few name it as user~name does; from the first one that does,
    its id is known, which all the others have.
    """
    ids = {job or ""}
    user, is_full_name, name = (job or "").partition("~")
    if is_full_name:
        ids.clear()

    def is_wanted(record: ConsumerRecord) -> bool:
        value = _value(record.value) if is_full_name else None
        if isinstance(value, dict) and (value.get("user"), value.get("name")) == (user, name):
            ids.add(str(value.get("job")))
        text = (record.key or b"") + b" " + (record.value or b"")
        return any(each.encode() in text for each in ids)

    return is_wanted


def kafka_settings() -> KafkaSettings:
    """Where Kafka is, and the log-in, from the environment or the running Muster.

    Raises CommandError where the environment is wrong.
    """
    home = find_home()
    running = read_json(home / "running.json")
    known: dict[str, Any] = {}
    if not os.environ.get("MUSTER_KAFKA_BOOTSTRAP"):
        known["kafka_bootstrap"] = running.get("kafka") or "127.0.0.1:9092"
        if running.get("kafkaIsClosed"):
            known |= login(home / "kafka", OPERATOR)
    try:
        return KafkaSettings(**known)
    except ValidationError as error:
        raise CommandError(Exit.USAGE, "; ".join(problems(error))) from error


def _print_record(record: ConsumerRecord) -> None:
    at = datetime.fromtimestamp(record.timestamp / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    key = (record.key or b"").decode(errors="replace")
    is_terminal = sys.stdout.isatty()
    shown = _shown(_value(record.value), key, VALUE if is_terminal else sys.maxsize)
    line = printable(f"{at}  {record.topic:19}  {key}  {shown}")
    most = ROWS * shutil.get_terminal_size().columns
    if is_terminal and len(line) > most:
        line = line[: most - 1] + "…"
    print_line(line)
    sys.stdout.flush()


def _shown(value: object, key: str, most: int) -> str:
    """A record's contents: its plain values and reasons, also those one level deeper, each of at
    most `most` characters, and how many entries its lists have.
    """
    if value is None:
        return "(removed)"
    if not isinstance(value, dict):
        return str(value)
    parts = {name: value for name, value in value.items() if name not in BOOKKEEPING}
    deeper = {
        f"{name}.{each}": part
        for name, value in parts.items()
        if isinstance(value, dict) and "text" not in value
        for each, part in value.items()
    }
    plain = {
        name: f"[{len(value)}]" if isinstance(value, list) else value
        for name, value in _with_texts(parts | deeper)
        if isinstance(value, str | int | float | list)
    }
    return " ".join(
        f"{name}={cut(' '.join(str(value).split()), most)}"
        for name, value in plain.items()
        if value != key
    )


def _with_texts(parts: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The same, with a reason's text in its place."""
    for name, value in parts.items():
        yield name, value.get("text", value) if isinstance(value, dict) else value


def _print_json(record: ConsumerRecord) -> None:
    content = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": (record.key or b"").decode(errors="replace"),
        "headers": {name: value.decode(errors="replace") for name, value in record.headers},
        "value": _value(record.value),
    }
    print_line(json.dumps(content, ensure_ascii=False))
    sys.stdout.flush()


def _value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value.decode(errors="replace")
