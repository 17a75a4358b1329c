"""What the node has: GPUs by NVML (or pretended ones), processors, memory; and their health.

A call into the driver can hang for ever when a GPU is broken. So all calls, the first one too, run
on a thread of their own with a time limit. The GPUs then show as unhealthy, and the agent goes on.
`domain/gpus.py` interprets an answer.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import psutil
import structlog
from muster.contracts.nodes import Gpu, ProblemKind

from runtime_agent.domain.gpus import (
    Answer,
    Device,
    Inventory,
    answered,
    cuda_names,
    gpus_of,
    noted,
)
from runtime_agent.domain.usage import GpuUsage
from runtime_agent.gpu_reader import GpuReader

_log = structlog.get_logger()

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE
SIMULATED_MEMORY_MB = 16 * 1024

EVENTS_A_LOOK = 1000
"""Of one GPU: what is left is read by the next look."""
FORGET_XIDS = "forget-xids"
"""A file in the agent's home: the operator creates it after a reset of the GPUs."""


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


@dataclass(frozen=True)
class Look:
    """What a look at the GPUs found. `problem`: why the driver did not answer. `xids`: those that
    it reported since the last look, each with its GPU's index. `memory`: what the next start of the
    agent should know; None: nothing. By a GPU's index, `processes`: the numbers of those that
    compute on it, `usage`: its figures.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None
    xids: tuple[tuple[int, int], ...] = ()
    memory: str | None = None
    processes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    usage: Mapping[int, GpuUsage] = field(default_factory=dict)


class Devices(Protocol):
    """The GPUs of this node. `simulated`: they are not real. Of the last look, by index: `names`,
    what `CUDA_VISIBLE_DEVICES` calls each GPU on the node itself, and `uuids`.
    """

    simulated: bool
    names: Mapping[int, str]

    @property
    def uuids(self) -> Mapping[int, str]:
        """What NVIDIA's container runtime calls each GPU."""

    def look(self) -> Look:
        """All GPUs that are known, in the order of their index. It may take its time limit."""


class SimulatedDevices:
    """Simulated GPUs, for trials; each is marked as such."""

    simulated = True

    def __init__(self, node: str, count: int) -> None:
        self.names: Mapping[int, str] = {index: str(index) for index in range(count)}
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

    @property
    def uuids(self) -> Mapping[int, str]:
        """No runtime knows them."""
        return {gpu.index: gpu.uuid for gpu in self._gpus}

    def look(self) -> Look:
        """They are always healthy."""
        return Look(self._gpus)


class NvmlDevices:
    """GPUs as NVIDIA's management library (the module `nvml`) lists them.

    The library is opened by the first look that can, and opened anew after an error: a driver that
    is loaded, unloaded or reloaded is noticed by the next look.
    """

    simulated = False

    def __init__(
        self, nvml: Any, timeout_s: float, *, boot: str, home: Path, memory: str | None = None
    ) -> None:
        self._driver = _Driver(nvml)
        self._nvml = nvml
        self._timeout_s = timeout_s
        self._boot = boot
        self._forget = home / FORGET_XIDS
        self._known = Inventory() if memory is None else Inventory.model_validate_json(memory)
        self._pending: Future[Answer] | None = None
        self._last_xids: dict[str, int] = {}
        self.names: Mapping[int, str] = cuda_names(self._known)

    @property
    def uuids(self) -> Mapping[int, str]:
        """As the driver gave them."""
        return {index: device.uuid for index, device in self._known.devices.items()}

    def look(self) -> Look:
        """Asks the driver for no longer than the timeout."""
        if self._pending is None:
            self._pending = _on_a_thread(self._driver.ask)
        problem, answer = None, Answer()
        try:
            answer = self._pending.result(self._timeout_s)
            self._take(answer)
        except FutureTimeout:
            return self._looked(f"The GPU driver has not answered for {self._timeout_s:g} s.")
        except self._nvml.NVMLError as error:
            problem = self._problem(error)
        self._pending = None
        look = self._looked(problem, self._driver.take_xids())
        devices = self._known.devices.items()
        return replace(
            look,
            processes={index: answer.processes.get(of.uuid, ()) for index, of in devices},
            usage={
                index: replace(answer.usage[of.uuid], xid=self._last_xid(of.gpu))
                for index, of in devices
                if of.uuid in answer.usage
            },
        )

    def _last_xid(self, gpu: str) -> int:
        fault = self._known.faults.get(gpu)
        return self._last_xids.get(gpu, 0 if fault is None else fault.xid)

    def _take(self, answer: Answer) -> None:
        before, self._known = self._known, answered(self._known, answer, self._boot)
        kept = {device.uuid for device in self._known.devices.values()}
        for index, device in before.devices.items():
            if device.uuid not in kept:
                _log.warning("a GPU is no longer listed", gpu=index, uuid=device.uuid)

    def _problem(self, error: Exception) -> str | None:
        """None on a machine that never had a driver."""
        nvml = self._nvml
        if isinstance(error, nvml.NVMLError_LibraryNotFound | nvml.NVMLError_DriverNotLoaded):
            return f"The GPU driver is not loaded: {error}." if self._known.devices else None
        return f"The GPU driver answers with an error: {error}."

    def _looked(self, problem: str | None, xids: tuple[tuple[str, int], ...] = ()) -> Look:
        if self._forget.exists():
            self._known = self._known.model_copy(update={"faults": {}})
            self._last_xids = {}
            self._forget.unlink()
        self._last_xids |= dict(xids)
        self._known = noted(self._known, xids, self._boot, datetime.fromtimestamp(time.time(), UTC))
        self.names = cuda_names(self._known)
        of = {device.gpu: index for index, device in reversed(self._known.devices.items())}
        return Look(
            gpus_of(self._known, problem),
            problem,
            tuple((of[uuid], xid) for uuid, xid in xids if uuid in of),
            self._known.model_dump_json(),
        )


@dataclass
class _Driver:
    """The calls into the library; one thread at a time makes them.

    A GPU has an event set of its own: of one that fell off the bus not even the UUID can be asked.
    """

    nvml: Any
    _is_open: bool = False
    _must_reopen: bool = False
    _events: dict[str, Any] = field(default_factory=dict)
    _xids: list[tuple[str, int]] = field(default_factory=list)
    _reader: GpuReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = GpuReader(self.nvml)

    def take_xids(self) -> tuple[tuple[str, int], ...]:
        """The Xids that were read since this was last asked, each with its GPU's UUID."""
        xids, self._xids = tuple(self._xids), []
        return xids

    def ask(self) -> Answer:
        """What the driver lists now. Raises NVMLError where it lists nothing."""
        self._read_events()
        if self._must_reopen:
            self._close()
        if not self._is_open:
            self.nvml.nvmlInit()
            self._is_open = True
        try:
            answer = self._ask_all()
        except self.nvml.NVMLError:
            self._close()
            raise
        self._must_reopen = bool(answer.silent)
        return answer

    def _close(self) -> None:
        """Lets go of the library; it ends its event sets itself."""
        self._is_open, self._must_reopen, self._events = False, False, {}
        self._reader.close()
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()

    def _read_events(self) -> None:
        for uuid, events in self._events.items():
            with contextlib.suppress(self.nvml.NVMLError):  # nothing more to read
                for _ in range(EVENTS_A_LOOK):
                    event = self.nvml.nvmlEventSetWait_v2(events, 0)
                    self._xids.append((uuid, int(event.eventData)))

    def _ask_all(self) -> Answer:
        devices: list[Device] = []
        silent: dict[int, str] = {}
        processes: dict[str, tuple[int, ...]] = {}
        usage: dict[str, GpuUsage] = {}
        for number in range(self.nvml.nvmlDeviceGetCount()):
            try:
                for device, handle in self._ask_one(number):
                    devices.append(device)
                    processes[device.uuid] = self._processes(handle)
                    usage[device.uuid] = self._figures(device.uuid, handle)
            except self.nvml.NVMLError as error:
                silent[number] = str(error)
        return Answer(tuple(devices), silent, processes, usage)

    def _figures(self, uuid: str, handle: Any) -> GpuUsage:
        """They are no reason to know nothing of a GPU."""
        try:
            return self._reader.read(uuid, handle)
        except Exception as error:
            _log.warning("figures of a GPU can't be read", uuid=uuid, error=repr(error))
            return GpuUsage()

    def _ask_one(self, number: int) -> list[tuple[Device, Any]]:
        """The GPU, or where MIG mode is on its MIG devices; each with its handle."""
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        problem = self._problem(handle)
        gpu = Device(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            model=_text(nvml.nvmlDeviceGetName(handle)),
            memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).total // MEBIBYTE,
            number=number,
            is_mig=self._is_in_mig_mode(handle),
            problem=problem,
            problem_kind=None if problem is None else ProblemKind.MEMORY,
        )
        self._listen(gpu.uuid, handle)
        if not gpu.is_mig:
            return [(gpu, handle)]
        parts = [(self._part(gpu, part), part) for part in self._parts(handle)]
        if not parts and gpu.problem is None:
            text = "MIG mode is on and the GPU has no MIG device. Create one, or turn MIG mode off."
            update = {"problem": text, "problem_kind": ProblemKind.SETUP}
            gpu = gpu.model_copy(update=update)
        return parts or [(gpu, handle)]

    def _processes(self, handle: Any) -> tuple[int, ...]:
        """Not every driver lists them. Displays' own use of a GPU is not among them."""
        with contextlib.suppress(self.nvml.NVMLError):
            listed = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return tuple(each.pid for each in listed)
        return ()

    def _is_in_mig_mode(self, handle: Any) -> bool:
        nvml = self.nvml
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return False
        return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)

    def _parts(self, handle: Any) -> Iterator[Any]:
        """The handles of a GPU's MIG devices."""
        nvml = self.nvml
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)

    def _part(self, gpu: Device, handle: Any) -> Device:
        """A MIG device. Its GPU's problems are its own."""
        nvml = self.nvml
        profile = _profile(nvml.nvmlDeviceGetAttributes(handle), gpu.memory_mb)
        return gpu.model_copy(
            update={
                "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
                "model": f"{gpu.model} MIG {profile}",
                "memory_mb": nvml.nvmlDeviceGetMemoryInfo(handle).total // MEBIBYTE,
                "parent": gpu.uuid,
                "profile": profile,
            }
        )

    def _problem(self, handle: Any) -> str | None:
        nvml = self.nvml
        with contextlib.suppress(nvml.NVMLError):  # not every GPU counts its errors
            errors = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
            if errors:
                return (
                    f"{errors} memory errors since the driver was loaded could not be corrected."
                    " Reset the GPU."
                )
        with contextlib.suppress(nvml.NVMLError):
            _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            if failed:
                return "A memory row could not be remapped. Replace the GPU."
            if pending:
                return "The remapping of a memory row is pending. Reset the GPU."
        return None

    def _listen(self, uuid: str, handle: Any) -> None:
        nvml = self.nvml
        if uuid not in self._events:
            with contextlib.suppress(nvml.NVMLError):  # not every driver reports Xids
                self._events[uuid] = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._events[uuid]
                )


def _profile(attributes: Any, gpu_memory_mb: int) -> str:
    """The name of a MIG device's profile, as NVIDIA forms it: its slices of processors, and its
    memory in eighths of the GPU's. Variants with media extensions (`+me`) bear the same name.
    """
    eighths = math.ceil(attributes.memorySizeMB * 8 / gpu_memory_mb)
    gigabytes = round(eighths / 8 * math.ceil(gpu_memory_mb * MEBIBYTE / GIBIBYTE))
    whole, used = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    shared = "" if used == whole else f"{used}c."
    return f"{shared}{whole}g.{gigabytes}gb"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _on_a_thread(work: Callable[[], Answer]) -> Future[Answer]:
    """A thread that the process does not wait for at its end: its call may never return."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return future
