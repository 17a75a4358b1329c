"""Batches of records as they lie in the log, read so that none of them can end a reader.

Kafka allows any bytes in a header's name. aiokafka decodes it as UTF-8, and fails at the same
record again and again. Muster never writes such a name, and a batch has one producer. So the rest
of a batch with such a name is foreign, and is skipped.
"""

from collections.abc import Iterator
from typing import Any

import structlog
from aiokafka.consumer import fetcher
from aiokafka.record.memory_records import MemoryRecords

_log = structlog.get_logger()


class Batch:
    """One batch; it ends where a record can't be read."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except UnicodeDecodeError as error:
            first, after = self._batch.base_offset, self._batch.next_offset
            _log.error("records can't be read", offsets=f"{first} to {after}", reason=str(error))

    def __next__(self) -> Any:
        return next(self._batch)


class Batches:
    """What aiokafka's fetcher takes the batches of an answer from."""

    def __init__(self, answer: bytes) -> None:
        self._records = MemoryRecords(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def next_batch(self) -> Batch:
        """The next one."""
        return Batch(self._records.next_batch())


def install() -> None:
    """Replace aiokafka's class in all consumers of this process: it has no setting for it."""
    fetcher.MemoryRecords = Batches
