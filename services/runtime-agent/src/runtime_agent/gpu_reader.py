"""Reads a GPU's figures by NVML.

The calls chosen take some 7 ms a GPU on an H100, of which the energy takes half. Those for PCIe's
throughput are not among them: each watches the link for 20 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runtime_agent.domain.usage import GpuUsage

MILLI = 1000.0
ALL_LINKS = 0xFFFFFFFF
"""The scope of a field: the sum over all NVLinks."""
KIBIBYTE = 1024

METRICS = {
    "active": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""GPM's, in percent between two samples; GPUs have it from Hopper on."""
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's union that holds the value, by the value's type."""


@dataclass
class GpuReader:
    """`nvml`: the module. What one GPU does not have is left out; the others' calls go on."""

    nvml: Any
    _samples: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Before the library is closed."""
        for uuid in list(self._samples):
            self._free(self._samples.pop(uuid))

    def read(self, uuid: str, handle: Any) -> GpuUsage:
        """All figures now. Raises nothing: what fails is None."""
        nvml = self.nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rows = self._ask(nvml.nvmlDeviceGetRemappedRows, handle) or (None,) * 4
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        energy = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        fields = self._fields(handle)
        link_kib = _sum(
            fields.get("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
            fields.get("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
        )
        return GpuUsage(
            busy=None if rates is None else rates.gpu,
            copying=None if rates is None else rates.memory,
            memory_used=None if memory is None else memory.used,
            memory_free=None if memory is None else memory.free,
            temperature=self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            memory_temperature=fields.get("NVML_FI_DEV_MEMORY_TEMP"),
            power=None if power is None else power / MILLI,
            power_limit=None if limit is None else limit / MILLI,
            energy=None if energy is None else energy / MILLI,
            sm_clock=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            throttling=self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            state=self._ask(nvml.nvmlDeviceGetPerformanceState, handle),
            corrected=self._errors(handle, "CORRECTED", nvml.NVML_VOLATILE_ECC),
            uncorrected=self._errors(handle, "UNCORRECTED", nvml.NVML_VOLATILE_ECC),
            corrected_ever=self._errors(handle, "CORRECTED", nvml.NVML_AGGREGATE_ECC),
            uncorrected_ever=self._errors(handle, "UNCORRECTED", nvml.NVML_AGGREGATE_ECC),
            remapped_corrected=rows[0],
            remapped_uncorrected=rows[1],
            remap_pending=rows[2],
            remap_failed=rows[3],
            pcie_replays=self._ask(nvml.nvmlDeviceGetPcieReplayCounter, handle),
            nvlink_bytes=None if link_kib is None else link_kib * KIBIBYTE,
            nvlink_crc_errors=fields.get("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
            nvlink_replays=fields.get("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
            nvlink_recoveries=fields.get("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
            **self._shares(uuid, handle),
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        with suppress(self.nvml.NVMLError):
            return call(*arguments)
        return None

    def _errors(self, handle: Any, kind: str, counter: int) -> float | None:
        memory = getattr(self.nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        found: float | None = self._ask(
            self.nvml.nvmlDeviceGetTotalEccErrors, handle, memory, counter
        )
        return found

    def _fields(self, handle: Any) -> Mapping[str, float]:
        """What only one call for many fields has; those that this GPU has."""
        wanted = {
            "NVML_FI_DEV_MEMORY_TEMP": 0,
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": ALL_LINKS,
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": ALL_LINKS,
            "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0,
            "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 0,
            "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0,
        }
        asked = [(getattr(self.nvml, name), scope) for name, scope in wanted.items()]
        answers = self._ask(self.nvml.nvmlDeviceGetFieldValues, handle, asked) or ()
        return {
            name: float(getattr(answer.value, _VALUES[answer.valueType]))
            for name, answer in zip(wanted, answers, strict=False)
            if answer.nvmlReturn == self.nvml.NVML_SUCCESS
        }

    def _shares(self, uuid: str, handle: Any) -> dict[str, float]:
        """GPM's metrics since the last sample, which this one replaces."""
        nvml = self.nvml
        before, asked = self._samples.pop(uuid, None), nvml.c_nvmlGpmMetricsGet_t()
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return {}
            now = self._samples[uuid] = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(handle, now)
            if before is None:
                return {}
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
            asked.sample1, asked.sample2 = before, now
            for place, name in enumerate(METRICS.values()):
                asked.metrics[place].metricId = getattr(nvml, name)
            nvml.nvmlGpmMetricsGet(asked)
        except nvml.NVMLError:  # a MIG device, or a driver without it
            return {}
        finally:
            if before is not None:
                self._free(before)
        return _told(METRICS, asked.metrics, nvml.NVML_SUCCESS)

    def _free(self, sample: Any) -> None:
        with suppress(self.nvml.NVMLError):
            self.nvml.nvmlGpmSampleFree(sample)


def _told(names: Iterable[str], answers: Any, success: int) -> dict[str, float]:
    return {
        name: answers[place].value / 100
        for place, name in enumerate(names)
        if answers[place].nvmlReturn == success and math.isfinite(answers[place].value)
    }


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
