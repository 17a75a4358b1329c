"""What the agent knows of its GPUs: which ones, under which index, and what is wrong with each.

The journal keeps it, so that neither a restart of the agent nor a driver that hangs makes a GPU or
its fault disappear. A GPU is known by its UUID: the driver's numbers change between boots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

from muster.contracts.model import Model
from muster.contracts.nodes import Gpu, ProblemKind

from runtime_agent.domain.usage import GpuUsage

FIRST_SPARE_INDEX = 64
"""MIG devices, and GPUs whose own number is taken, get indices from here: no node has more GPUs."""

BAD_XIDS: Mapping[int, str] = {
    46: "it stopped processing",
    48: "a memory error that could not be corrected",
    54: "its auxiliary power is not connected",
    62: "its micro-controller halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "a memory error that could not be contained",
    110: "a security fault",
    119: "its system processor (GSP) did not answer in time",
    120: "its system processor (GSP) failed",
    136: "an NVLink could not be trained",
    140: "a memory error that could not be corrected escaped its handling",
    143: "it could not be initialised",
    156: "a part of it was retired, which takes a reset",
    158: "a fatal timeout",
}
"""The Xids for which NVIDIA's catalog asks for a reset of the GPU or the machine, or for a repair.

Not among them: those that ask for a restart of the application, or for nothing (13, 31, 43, 45, 63,
92, 94 …; 63 leaves a pending row remapping, which each look reads); 109, which programs cause too;
144 to 150, whose meaning is in the sub-code; 154, which only sums up another one; 155, which also
reports links that were taken down on purpose.
"""


TIERS = FATAL, PROGRAM = "fatal", "program"


def tier_of(xid: int) -> str:
    """Whether an Xid makes its GPU unhealthy, or is left to the program."""
    return FATAL if xid in BAD_XIDS else PROGRAM


SHARERS = frozenset({"nvidia-cuda-mps"})
"""Programs that hold a GPU for the processes of others: the server of NVIDIA's MPS, whose clients
are not listed beside it. Names end at 15 characters.
"""
NAMED_PROCESSES = 3


class Device(Model):
    """A GPU or a MIG device, as the driver listed it last.

    ``number``: the driver's number of the GPU, for a MIG device that of its parent. ``parent``: the
    UUID of the GPU that a MIG device is part of. ``is_mig``: MIG mode is on. ``is_missing``: the
    newest answer lacks it. The empty ``uuid``: a GPU that has never answered.
    """

    uuid: str
    model: str
    memory_mb: int
    number: int
    is_mig: bool = False
    parent: str | None = None
    profile: str | None = None
    is_missing: bool = False
    problem: str | None = None
    problem_kind: ProblemKind | None = None

    @property
    def gpu(self) -> str:
        """The UUID of the GPU that it is, or is part of."""
        return self.parent or self.uuid


class Fault(Model):
    """The driver reported an Xid of `BAD_XIDS` for a GPU. It counts until the machine reboots."""

    xid: int
    at: datetime
    boot: str

    @property
    def problem(self) -> str:
        """The fault as a sentence."""
        at = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"The driver reported Xid {self.xid} at {at}: {BAD_XIDS.get(self.xid, 'a fault')}."
            " Reset the GPU or reboot the node."
        )


class Inventory(Model):
    """``devices`` by index; ``faults``: the newest of each GPU, by UUID. ``boot``: of the newest
    answer.
    """

    boot: str = ""
    devices: dict[int, Device] = {}
    faults: dict[str, Fault] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the driver listed. ``silent``: the error of each GPU that did not answer, by number.
    By a device's UUID, ``processes``: the numbers of those that compute on it, ``usage``: its
    figures.
    """

    devices: tuple[Device, ...] = ()
    silent: Mapping[int, str] = field(default_factory=dict)
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    usage: Mapping[str, GpuUsage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class ForeignProcess:
    """A process on a GPU that belongs to no pod of Muster; ``ticks``: its start."""

    pid: int
    ticks: int
    name: str


def answered(known: Inventory, answer: Answer, boot: str) -> Inventory:
    """The inventory after an answer of the driver. Each device keeps its index while it is known.

    A GPU that is no longer listed stays, with a problem, until the machine has rebooted. A MIG
    device, or a GPU that is now in MIG mode, goes as soon as its GPU answers without it.
    """
    listed = {device.uuid for device in answer.devices}
    present = {device.gpu for device in answer.devices}
    is_rebooted = known.boot != boot
    devices: dict[int, Device] = {}
    index_of: dict[str, int] = {}
    for index, device in known.devices.items():
        if device.uuid in listed:
            index_of[device.uuid] = index
        elif device.uuid and device.gpu not in present:
            if error := answer.silent.get(device.number):
                devices[index] = _missing(device, f"The GPU does not answer: {error}.")
            elif not is_rebooted:
                devices[index] = _missing(device, "The GPU is gone: the driver does not list it.")
    explained = {device.number for device in devices.values()}
    unknown = [_unknown(n, e) for n, e in answer.silent.items() if n not in explained]
    for device in (*answer.devices, *unknown):
        taken = devices.keys() | index_of.values()
        own = index_of.get(device.uuid)
        devices[_free_index(device, taken) if own is None else own] = device
    return Inventory(boot=boot, devices=dict(sorted(devices.items())), faults=known.faults)


def _missing(device: Device, problem: str) -> Device:
    missing = {"is_missing": True, "problem": problem, "problem_kind": ProblemKind.MISSING}
    return device.model_copy(update=missing)


def _unknown(number: int, error: str) -> Device:
    problem = f"The GPU has never answered: {error}."
    return Device(
        uuid="",
        model="unknown",
        memory_mb=0,
        number=number,
        is_missing=True,
        problem=problem,
        problem_kind=ProblemKind.MISSING,
    )


def _free_index(device: Device, taken: Set[int]) -> int:
    if device.parent is None and device.number not in taken:
        return device.number
    return next(index for index in count(FIRST_SPARE_INDEX) if index not in taken)


def noted(known: Inventory, xids: Iterable[tuple[str, int]], boot: str, at: datetime) -> Inventory:
    """The inventory with the faults among these Xids (each with its GPU's UUID), and without those
    of an earlier boot.
    """
    faults = {uuid: fault for uuid, fault in known.faults.items() if fault.boot == boot}
    faults |= {uuid: Fault(xid=x, at=at, boot=boot) for uuid, x in xids if x in BAD_XIDS}
    return known if faults == known.faults else known.model_copy(update={"faults": faults})


def gpus_of(known: Inventory, driver_problem: str | None) -> tuple[Gpu, ...]:
    """The GPUs to report. What is wrong with the driver is wrong with each of them."""
    found = []
    for index, device in sorted(known.devices.items()):
        fault = known.faults.get(device.gpu)
        problem, kind = device.problem, device.problem_kind
        if fault is not None:
            problem, kind = fault.problem, ProblemKind.XID
        if driver_problem is not None:
            problem, kind = driver_problem, ProblemKind.DRIVER
        found.append(_gpu(index, device, problem, kind))
    return tuple(found)


def _gpu(index: int, device: Device, problem: str | None, kind: ProblemKind | None) -> Gpu:
    return Gpu(
        index=index,
        uuid=device.uuid,
        model=device.model,
        memory_mb=device.memory_mb,
        is_healthy=problem is None,
        problem=problem,
        problem_kind=kind,
        mig_profile=device.profile,
        mig_parent=device.parent,
    )


def with_foreign(
    gpus: Iterable[Gpu], foreign: Mapping[int, Set[ForeignProcess]]
) -> tuple[Gpu, ...]:
    """The GPUs; unhealthy are those that foreign processes hold (by index), see `staying`."""
    found = []
    for gpu in gpus:
        stay = foreign.get(gpu.index)
        if stay and gpu.is_healthy:
            update = {"is_healthy": False, "problem": _used_by(sorted(stay))}
            gpu = gpu.model_copy(update=update | {"problem_kind": ProblemKind.FOREIGN})
        found.append(gpu)
    return tuple(found)


def staying(
    now: Mapping[int, Set[ForeignProcess]], before: Mapping[int, Set[ForeignProcess]]
) -> dict[int, Set[ForeignProcess]]:
    """By the GPU's index, the processes at both of two looks that hold it for themselves: at one
    look processes of a pod that has just ended may still live.
    """
    return {
        index: {each for each in found & before.get(index, frozenset()) if each.name not in SHARERS}
        for index, found in now.items()
    }


def _used_by(processes: Sequence[ForeignProcess]) -> str:
    first = processes[:NAMED_PROCESSES]
    names = ", ".join(f"{each.pid} ({_printable(each.name)})" for each in first)
    more = f" and {len(processes) - len(first)} more" if processes[NAMED_PROCESSES:] else ""
    what = "Processes" if len(processes) > 1 else "A process"
    use, them = ("use", "them") if len(processes) > 1 else ("uses", "it")
    return f"{what} of no Muster pod {use} the GPU: {names}{more}. End {them}."


def _printable(name: str) -> str:
    """A process chooses its name itself."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def cuda_names(known: Inventory) -> dict[int, str]:
    """What `CUDA_VISIBLE_DEVICES` calls each device: its number, as programs expect, where CUDA
    counts as the index does; else its UUID.

    CUDA leaves out GPUs that are in MIG mode or do not answer, so numbers then mean others.
    """
    is_plain = all(
        device.number == index and not device.is_mig and not device.is_missing
        for index, device in known.devices.items()
    )
    return {i: str(i) if is_plain else device.uuid for i, device in known.devices.items()}
