"""What workloads want, in numbers and words."""

from scheduler.domain.core.model import Numbers
from scheduler.domain.newcore.nodes import Workload


def wanted(workload: Workload) -> dict[str, int | float | str | None]:
    """Of all its pods."""
    wants = workload.wants
    return {
        "pods": sum(len(pods) for _, pods in wants),
        "gpus": sum(want.gpus * len(pods) for want, pods in wants),
        "cpu": sum(want.kind.cpu * len(pods) for want, pods in wants),
        "memoryMB": sum(want.kind.memory_mb * len(pods) for want, pods in wants),
    }


def in_words(workload: Workload) -> str:
    """The same in words: pods and GPUs."""
    numbers: Numbers = wanted(workload)
    pods, gpus = numbers["pods"], numbers["gpus"]
    what = f"with {counted(gpus, 'GPU')}" if gpus else "without GPUs"
    return f"{counted(pods, 'pod')} {what}"


def counted(number: object, noun: str) -> str:
    """So many of something."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
