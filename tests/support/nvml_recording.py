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

    def nvmlDeviceGetFieldValues(self, handle: int, wanted: list[tuple[int, int]]) -> list[Any]:
        told = {int(key.split()[0]): each for key, each in self.looks[self.at]["fields"].items()}
        return [_field(told.get(number)) for number, _scope in wanted]

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return _struct(self._record["gpm support"])

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, sample: object) -> None:
        pass

    def nvmlGpmSampleGet(self, handle: int, sample: object) -> None:
        pass

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        told = {
            int(key.split()[0]): value
            for key, value in self.looks[self.at]["gpm"].items()
            if key[0].isdigit() and not isinstance(value, dict)
        }
        for metric in asked.metrics[: asked.numMetrics]:
            is_told = metric.metricId in told
            metric.nvmlReturn = (
                pynvml.NVML_SUCCESS if is_told else pynvml.NVML_ERROR_INVALID_ARGUMENT
            )
            metric.value = told.get(metric.metricId, 0.0)

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: object) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))


def _field(told: dict[str, Any] | None) -> Any:
    if told is None:
        return SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)
    value = pynvml.c_nvmlValue_t()
    name = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")[told["type"]]
    setattr(value, name, told["value"])
    return SimpleNamespace(nvmlReturn=told["ret"], valueType=told["type"], value=value)


def _struct(value: Any) -> Any:
    """A dictionary as the object with fields that the library gives."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _struct(each) for name, each in value.items()})
    return [_struct(each) for each in value] if isinstance(value, list) else value
