"""Reads what the kernel counts of tasks and of the node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

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
        words = (directory / "io.stat").read_text().split()
        return _sum_of(words, "rbytes="), _sum_of(words, "wbytes=")
    with suppress(OSError):
        lines = (directory / _V1["io"]).read_text().splitlines()
        return _sum_of(lines, " Read "), _sum_of(lines, " Write ")
    return None, None


def _sum_of(words: Iterable[str], mark: str) -> float:
    """Of the numbers that follow the mark."""
    return sum(float(word.split(mark)[1]) for word in words if mark in word)


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
    below = [CGROUPS, *CGROUPS.iterdir()] if uid and CGROUPS.is_dir() else []
    return [
        found
        for hierarchy in below
        for name in names
        for depth in ("kubepods*/", "kubepods*/*/")
        for found in hierarchy.glob(depth + name)
    ]


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
    transfers, networks = psutil.disk_io_counters(), psutil.net_io_counters(pernic=True)
    others = [each for name, each in networks.items() if name != "lo"]
    return NodeUsage(
        cpu_s={mode: float(getattr(times, mode)) for mode in times._fields},
        load1=os.getloadavg()[0],
        memory_total=memory.total,
        memory_available=memory.available,
        disk_total=disk.total,
        disk_available=disk.free,
        read=transfers.read_bytes if transfers else 0,
        written=transfers.write_bytes if transfers else 0,
        received=sum(each.bytes_recv for each in others),
        sent=sum(each.bytes_sent for each in others),
    )


def _number(file: Path) -> float | None:
    with suppress(OSError, ValueError):
        return float(file.read_text())
    return None


def _pairs(file: Path) -> dict[str, float]:
    with suppress(OSError, ValueError):
        lines = (line.split() for line in file.read_text().splitlines())
        return {name: float(number) for name, number in lines}
    return {}
