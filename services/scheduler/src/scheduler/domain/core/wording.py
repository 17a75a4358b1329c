"""What waiting gangs want, in numbers and words."""

from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import Numbers


def wanted(live: Live) -> dict[str, int | float | str | None]:
    """Of all pods of a gang that wait."""
    roles = live.waiting
    return {
        "pods": sum(len(role.pods) for role in roles),
        "gpus": sum(role.kind.gpus * len(role.pods) for role in roles),
        "cpu": sum(role.kind.cpu * len(role.pods) for role in roles),
        "memoryMB": sum(role.kind.memory_mb * len(role.pods) for role in roles),
    }


def in_words(live: Live) -> str:
    """The same in words: pods and GPUs."""
    numbers: Numbers = wanted(live)
    pods, gpus = numbers["pods"], numbers["gpus"]
    what = f"with {counted(gpus, 'GPU')}" if gpus else "without GPUs"
    return f"{counted(pods, 'pod')} {what}"


def counted(number: object, noun: str) -> str:
    """So many of something."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
