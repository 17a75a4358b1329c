"""Replays what a real driver answered: `recordings/nvml_h100.json.gz`, 25 looks at an H100 that was
idle, multiplied matrices, wrote memory, and met two faulty programs.

The recording has `static` calls, `looks` (each with the seconds since the first, what ran during
it, its calls, field values and GPM metrics) and the Xids after each fault. A call has its `value`
or its `error`, and the microseconds that it took. Serial number and UUID are replaced.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

H100 = Path(__file__).parent / "recordings" / "nvml_h100.json.gz"


class Recording:
    """Plays `pynvml` at look number `at`; a handle is the GPU's number. `xids` are yet to read."""

    def __init__(self, file: Path = H100) -> None:
        self._record = json.loads(gzip.decompress(file.read_bytes()))
        self.at = 0
        self.xids: list[int] = []

    @property
    def looks(self) -> list[Any]:
        """All of the recording's looks."""
        return list(self._record["looks"])

    def fail(self, fault: str) -> None:
        """The Xids that this faulty program caused come next."""
        (events,) = (each["events"] for each in self._record["xids"] if each["fault"] == fault)
        self.xids += [event["data"] for event in events]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            return getattr(pynvml, name)

        def call(*arguments: int) -> Any:
            key = f"{name}({', '.join(map(str, arguments))})"
            answer = self.looks[self.at]["calls"].get(key) or self._record["static"][key]
            if "error" in answer:
                raise pynvml.NVMLError(answer["error"])
            return _struct(answer["value"])

        return call

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: object) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))


def _struct(value: Any) -> Any:
    """A dictionary as the object with fields that the library gives."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _struct(each) for name, each in value.items()})
    return [_struct(each) for each in value] if isinstance(value, list) else value
