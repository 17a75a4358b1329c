"""Reads what the kernel counts of tasks and of the node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil

from runtime_agent.domain.usage import NodeUsage, TaskUsage

MICRO, NANO = 1e6, 1e9
CGROUPS = Path("/sys/fs/cgroup")
_V1 = {"cpu": "cpuacct.usage", "io": "blkio.throttle.io_service_bytes_recursive"}


def of_groups(directories: Iterable[Path]) -> TaskUsage:
    """By control groups of either version; what they do not count is None."""
    used = TaskUsage()
    for directory in directories:
        used = filled(used, _of_group(directory))
    return used


def _of_group(directory: Path) -> TaskUsage:
    cpu = _pairs(directory / "cpu.stat").get("usage_usec")
    cpu_s = None if cpu is None else cpu / MICRO
    if (spent := _number(directory / _V1["cpu"])) is not None:
        cpu_s = spent / NANO
    memory, inactive = _number(directory / "memory.current"), "inactive_file"
    if memory is None:
        memory = _number(directory / "memory.usage_in_bytes")
        inactive = "total_inactive_file"
    if memory is not None:  # the kernel drops these pages before it kills
        memory = max(0.0, memory - _pairs(directory / "memory.stat").get(inactive, 0.0))
    read, written = _transfers(directory)
    return TaskUsage(cpu_s=cpu_s, memory=memory, read=read, written=written)


def _transfers(directory: Path) -> tuple[float | None, float | None]:
    """Bytes read and written, of all devices. A group that has moved none has an empty file."""
    with suppress(OSError):
        lines = _of_devices((directory / "io.stat").read_text())
        return _sum_after(lines, r"rbytes="), _sum_after(lines, r"wbytes=")
    with suppress(OSError):
        lines = _of_devices((directory / _V1["io"]).read_text())
        return _sum_after(lines, r" Read "), _sum_after(lines, r" Write ")
    return None, None


def _of_devices(text: str) -> list[str]:
    """The lines about disks; what LVM or RAID make of these would count their bytes again."""
    lines = [line for line in text.splitlines() if ":" in line]
    return [line for line in lines if not _is_virtual(Path("/sys/dev/block") / line.split()[0])]


def _is_virtual(device: Path) -> bool:
    """Of a disk's or network's folder in /sys; False where /sys does not have it."""
    return device.exists() and not (device / "device").exists()


def _sum_after(lines: Iterable[str], mark: str) -> float:
    found = (re.search(mark + r"(\d+)", line) for line in lines)
    return sum(float(each[1]) for each in found if each)


def of_processes(top: int) -> TaskUsage:
    """Of a process and all below it, and the CPU of those that they have waited for. Memory that
    several of them share counts for each.
    """
    cpu_s = memory = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(top)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
        return TaskUsage(cpu_s=cpu_s, memory=memory)
    return TaskUsage()


def of_network(pid: int) -> TaskUsage:
    """What the network that this process sees has received and sent, but for loopback."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        rows = [line.partition(":") for line in lines]
        counts = [after.split() for name, _, after in rows if name.strip() != "lo"]
        return TaskUsage(
            received=sum(float(each[0]) for each in counts),
            sent=sum(float(each[8]) for each in counts),
        )
    return TaskUsage()


def groups_of(uid: str) -> list[Path]:
    """The control groups of Kubernetes' pod of that uid: one, or under version 1 one for each of
    its hierarchies. kubelet nests them by the pod's quality of service.
    """
    names = (f"pod{uid}", f"*pod{uid.replace('-', '_')}.slice")
    found: dict[Path, None] = {}
    with suppress(OSError):  # a group that goes meanwhile
        for hierarchy in [CGROUPS, *CGROUPS.iterdir()] if uid and CGROUPS.is_dir() else []:
            for depth in ("", "*/", "*/*/"):
                for name in names:
                    found |= dict.fromkeys(hierarchy.glob(f"*kubepods*/{depth}{name}"))
    return list(found)


def first_of(groups: Iterable[Path]) -> int | None:
    """A process in one of these groups."""
    with suppress(OSError):
        for group in groups:
            for file in group.rglob("cgroup.procs"):
                if pids := file.read_text().split():
                    return int(pids[0])
    return None


def filled(used: TaskUsage, more: TaskUsage) -> TaskUsage:
    """What the first has, and else what the second has."""
    return TaskUsage(
        **{
            name: getattr(more if getattr(used, name) is None else used, name)
            for name in (each.name for each in fields(TaskUsage))
        }
    )


def of_node(home: Path) -> NodeUsage:
    """Of the machine; the disk is the one with the agent's home."""
    times, memory, disk = psutil.cpu_times(), psutil.virtual_memory(), psutil.disk_usage(str(home))
    cards = _real("/sys/class/net", psutil.net_io_counters(pernic=True))
    disks = _real("/sys/block", psutil.disk_io_counters(perdisk=True))
    return NodeUsage(
        cpu_s={mode: float(getattr(times, mode)) for mode in times._fields},
        load1=os.getloadavg()[0],
        memory_total=memory.total,
        memory_available=memory.available,
        disk_total=disk.total,
        disk_available=disk.free,
        read=sum(each.read_bytes for each in disks),
        written=sum(each.write_bytes for each in disks),
        received=sum(each.bytes_recv for each in cards),
        sent=sum(each.bytes_sent for each in cards),
    )


def _real(folder: str, counts: Mapping[str, Any]) -> list[Any]:
    """Those of devices, by the names in this folder of /sys."""
    return [each for name, each in counts.items() if (Path(folder) / name / "device").exists()]


def _number(file: Path) -> float | None:
    with suppress(OSError, ValueError):
        return float(file.read_text())
    return None


def _pairs(file: Path) -> dict[str, float]:
    with suppress(OSError, ValueError):
        lines = (line.split() for line in file.read_text().splitlines())
        return {name: float(number) for name, number in lines}
    return {}
