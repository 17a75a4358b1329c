"""Plays NVIDIA's management library behind its Python module `pynvml`, whose errors and constants
are the real ones. Like the library, it refuses every call before `nvmlInit`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

MEBIBYTE = 1024 * 1024
H100 = "NVIDIA H100 80GB HBM3"
H100_MB = 81559


@dataclass
class Part:
    """A MIG device; its memory and slices as the library tells of a 1g.10gb of an H100."""

    uuid: str
    memory_mb: int = 9984
    slices: int = 1
    used_slices: int = 1
    processes: list[int] = field(default_factory=list)


@dataclass
class Card:
    """A GPU. `error`: what every call about it answers. `parts`: None where MIG mode is off; a None
    among them is a place without a device. `rows`: None where rows are not remapped.
    """

    uuid: str
    error: int | None = None
    ecc_errors: int = 0
    rows: tuple[int, int, int, int] | None = None
    parts: list[Part | None] | None = None
    xids: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)


class Driver:
    """`before` is called at each call, with its name; `error` is what every call answers."""

    def __init__(self, *uuids: str) -> None:
        self.cards = [Card(uuid) for uuid in uuids]
        self.error: int | None = None
        self.before: Callable[[str], object] = lambda name: None
        self.is_open = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def _enter(self, name: str, *, needs_init: bool = True) -> None:
        self.calls.append(name)
        self.before(name)
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
        if needs_init and not self.is_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _of(self, name: str, card: Card | Part) -> Card:
        self._enter(name)
        if isinstance(card, Part):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if card.error is not None:
            raise pynvml.NVMLError(card.error)
        return card

    def nvmlInit(self) -> None:
        self._enter("nvmlInit", needs_init=False)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._of("nvmlDeviceGetHandleByIndex", self.cards[index])

    def nvmlDeviceGetUUID(self, handle: Card | Part) -> str:
        self._enter("nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Card) -> bytes:
        self._of("nvmlDeviceGetName", handle)
        return H100.encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Card | Part) -> Any:
        self._enter("nvmlDeviceGetMemoryInfo")
        memory_mb = handle.memory_mb if isinstance(handle, Part) else H100_MB
        return SimpleNamespace(total=memory_mb * MEBIBYTE, used=0, free=memory_mb * MEBIBYTE)

    def nvmlDeviceGetTotalEccErrors(self, handle: Card, kind: int, counter: int) -> int:
        return self._of("nvmlDeviceGetTotalEccErrors", handle).ecc_errors

    def nvmlDeviceGetRemappedRows(self, handle: Card) -> tuple[int, int, int, int]:
        rows = self._of("nvmlDeviceGetRemappedRows", handle).rows
        if rows is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return rows

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Card | Part) -> list[Any]:
        self._enter("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid) for pid in handle.processes]

    def nvmlDeviceGetMigMode(self, handle: Card) -> list[int]:
        is_on = self._of("nvmlDeviceGetMigMode", handle).parts is not None
        return [int(is_on), int(is_on)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Card) -> int:
        self._of("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Card, index: int) -> Part:
        parts = self._of("nvmlDeviceGetMigDeviceHandleByIndex", handle).parts or []
        part = parts[index] if index < len(parts) else None
        if part is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return part

    def nvmlDeviceGetAttributes(self, part: Part) -> Any:
        self._enter("nvmlDeviceGetAttributes")
        return SimpleNamespace(
            memorySizeMB=part.memory_mb,
            gpuInstanceSliceCount=part.slices,
            computeInstanceSliceCount=part.used_slices,
        )

    def nvmlEventSetCreate(self) -> list[Card]:
        self._enter("nvmlEventSetCreate")
        return []

    def nvmlDeviceRegisterEvents(self, handle: Card, kind: int, events: list[Card]) -> None:
        events.append(self._of("nvmlDeviceRegisterEvents", handle))

    def nvmlEventSetWait_v2(self, events: list[Card], timeout_ms: int) -> Any:
        self._enter("nvmlEventSetWait_v2")
        for card in events:
            if card.xids:
                return SimpleNamespace(eventData=card.xids.pop(0))
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)


def install(script: Path) -> None:
    """Makes this process's `pynvml` a driver that does what the script, a JSON file, says at each
    call: `hangs`; `cards`, of which each is a `uuid` with `parts`; `xids`, by UUID, each once;
    `processes` and `errors`, by UUID.
    """
    driver = Driver()
    cards: dict[str, Card] = {}
    sent: dict[str, int] = {}

    def follow(name: str) -> None:
        while (says := json.loads(script.read_text())).get("hangs"):
            time.sleep(0.01)
        for uuid, parts in says["cards"].items():
            card = cards.setdefault(uuid, Card(uuid))
            card.parts = None if parts is None else [Part(part) for part in parts]
            card.processes = says.get("processes", {}).get(uuid, [])
            card.error = says.get("errors", {}).get(uuid)
            xids = says.get("xids", {}).get(uuid, [])
            card.xids += xids[sent.get(uuid, 0) :]
            sent[uuid] = len(xids)
        driver.cards = [cards[uuid] for uuid in says["cards"]]

    driver.before = follow
    for name in vars(Driver):
        if name.startswith("nvml"):
            setattr(pynvml, name, getattr(driver, name))
