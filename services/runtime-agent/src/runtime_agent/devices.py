"""What the node has: GPUs by NVML (or pretended ones), processors, memory; and their health.

A call into the driver can hang for ever when a GPU is broken, so it runs on a thread of its own and
is given up on after a time; the GPUs then show as unhealthy instead of stopping the agent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from muster.contracts.nodes import Gpu

MEBIBYTE = 1024 * 1024
SIMULATED_MEMORY_MB = 16 * 1024

BAD_XIDS: dict[int, str] = {
    48: "a memory error that could not be corrected",
    62: "a halt of its micro-controller",
    64: "a failed retirement of memory",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "a memory error that could not be contained",
    119: "its system processor stopped answering",
    120: "its system processor failed",
    140: "a memory error that could not be corrected",
}
"""NVIDIA's "Xid" numbers that mean the hardware; programs cause the others (13, 31, 43 …)."""


@dataclass(frozen=True)
class Capacity:
    """What pods can be given."""

    cpu: int
    memory_mb: int


def capacity() -> Capacity:
    """Of the machine, or of the control group that the agent is confined to."""
    cpus = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int((Path("/sys/fs/cgroup") / name).read_text()))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cpus = min(cpus, max(1, int(quota) // int(period)))
    return Capacity(cpu=cpus, memory_mb=memory // MEBIBYTE)


class Devices(Protocol):
    """The GPUs of this node. `simulated` says that they are pretended."""

    simulated: bool

    def look(self) -> tuple[Gpu, ...]:
        """All GPUs ever seen since the start, in the order of their index."""


class SimulatedDevices:
    """GPUs that are not there, for trying things out; each says so."""

    simulated = True

    def __init__(self, node: str, count: int) -> None:
        self._gpus = tuple(
            Gpu(
                index=index,
                uuid=f"SIMULATED-{node}-{index}",
                model="simulated",
                memory_mb=SIMULATED_MEMORY_MB,
                simulated=True,
            )
            for index in range(count)
        )

    def look(self) -> tuple[Gpu, ...]:
        """They are always well."""
        return self._gpus


class NoDevices:
    """A node without a GPU driver."""

    simulated = False

    def look(self) -> tuple[Gpu, ...]:
        """None."""
        return ()


class NvmlDevices:
    """GPUs as NVIDIA's management library tells of them."""

    simulated = False

    def __init__(self, nvml: Any, timeout_s: float) -> None:
        self._nvml = nvml
        self._timeout_s = timeout_s
        self._pending: Future[dict[int, Gpu]] | None = None
        self._known: dict[int, Gpu] = {}
        self._xids: dict[int, int] = {}
        self._events: Any = None

    def look(self) -> tuple[Gpu, ...]:
        """Waits for the driver no longer than the timeout; a GPU that has gone stays, unhealthy."""
        if self._pending is None:
            self._pending = _on_a_thread(self._ask)
        try:
            seen = self._pending.result(self._timeout_s)
            self._pending = None
        except FutureTimeout:
            problem = f"The GPU driver has not answered for {self._timeout_s:g} s."
            return self._all_unwell(problem)
        except self._nvml.NVMLError as error:
            self._pending = None
            return self._all_unwell(f"The GPU driver answers with an error: {error}")
        gone = {
            index: _unwell(gpu, "The GPU is gone: the driver no longer lists it.")
            for index, gpu in self._known.items()
            if index not in seen
        }
        self._known |= seen
        return tuple(gpu for _, gpu in sorted((seen | gone).items()))

    def _all_unwell(self, problem: str) -> tuple[Gpu, ...]:
        return tuple(_unwell(gpu, problem) for _, gpu in sorted(self._known.items()))

    def _ask(self) -> dict[int, Gpu]:
        nvml = self._nvml
        if self._events is None:
            self._events = self._listen()
        self._read_events()
        found = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found[index] = self._ask_one(index)
            except nvml.NVMLError as error:
                if index in self._known:
                    found[index] = _unwell(self._known[index], f"The GPU does not answer: {error}")
        return found

    def _ask_one(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        problem = self._problem(index, handle)
        return Gpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            model=_text(nvml.nvmlDeviceGetName(handle)),
            memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).total // MEBIBYTE,
            is_healthy=problem is None,
            problem=problem,
        )

    def _problem(self, index: int, handle: Any) -> str | None:
        nvml = self._nvml
        if xid := self._xids.get(index):
            return f"The driver reported Xid {xid}: {BAD_XIDS[xid]}."
        with contextlib.suppress(nvml.NVMLError):  # not every GPU counts its errors
            errors = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
            if errors:
                return f"{errors} memory errors since boot could not be corrected."
        with contextlib.suppress(nvml.NVMLError):
            _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            if failed:
                return "The GPU has no spare memory rows left."
            if pending:
                return "A memory row was replaced; the GPU needs a reset."
        return None

    def _listen(self) -> Any:
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _read_events(self) -> None:
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # nothing more to read
                return
            if event.eventData in BAD_XIDS:
                self._xids[nvml.nvmlDeviceGetIndex(event.device)] = int(event.eventData)


def _unwell(gpu: Gpu, problem: str) -> Gpu:
    return gpu.model_copy(update={"is_healthy": False, "problem": problem})


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _on_a_thread(work: Callable[[], dict[int, Gpu]]) -> Future[dict[int, Gpu]]:
    """A thread that the process does not wait for at its end: it may never come back."""
    future: Future[dict[int, Gpu]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return future


def open_devices(node: str, simulated_gpus: int | None, timeout_s: float) -> Devices:
    """Pretended GPUs where asked for; else those of the driver; else none."""
    if simulated_gpus is not None:
        return SimulatedDevices(node, simulated_gpus)
    import pynvml  # only here: nodes without a driver need not load it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return NoDevices()
    return NvmlDevices(pynvml, timeout_s)
