"""What gangs want, in numbers and words. What they want: kinds, and how many pods of each."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Numbers, Reason

PLURALS = ("CPUs", "GPUs", "ports")
"""Resources with a plural; the site's own keep their names."""

Wanted = Iterable[tuple[Kind, int]]


def wanted_of(kinds: Wanted) -> dict[str, int | float | str | None]:
    """Of all pods together."""
    some = list(kinds)
    return {
        "pods": sum(count for _, count in some),
        "gpus": sum(kind.gpus * count for kind, count in some),
        "cpu": sum(kind.cpu * count for kind, count in some),
        "memoryMB": sum(kind.memory_mb * count for kind, count in some),
    }


def words_of(kinds: Wanted) -> str:
    """The same in words: pods and GPUs."""
    numbers: Numbers = wanted_of(kinds)
    pods, gpus = numbers["pods"], numbers["gpus"]
    what = f"with {counted(gpus, 'GPU')}" if gpus else "without GPUs"
    return f"{counted(pods, 'pod')} {what}"


def too_large(gang: Gang, kinds: Wanted, remedy: str, pins: Sequence[str] = ()) -> Reason:
    """Why a gang is refused that no healthy, empty cluster could hold. ``remedy``: what the nodes
    have too little of, and what to ask for. ``pins``: its virtual cluster's, where it names none.
    """
    some = list(kinds)
    where = "the whole cluster" if gang.priority == OPPORTUNISTIC else gang.virtual_cluster
    if gang.allowed_nodes is not None:
        where = f"{where}, on the nodes that it allows,"
    numbers, rest = wanted_of(some), Counter[str]()
    for kind, count in some:
        rest.update({name: each * count for name, each in kind.resources})
        rest["ports"] += kind.ports * count
    more = "".join(f", {amount_of(count, name)}" for name, count in sorted(rest.items()) if count)
    cpus = f"{numbers['cpu']} CPU{'' if numbers['cpu'] == 1 else 's'}"
    text = (
        f"{words_of(some)}, {cpus}{more} and {numbers['memoryMB']} MB at once:"
        f" {where} could not hold that, were it healthy and empty. {remedy}"
    )
    if pins:
        text += f" Or name a pin of {gang.virtual_cluster}: {', '.join(pins)}."
    return Reason("too-large", text, numbers)


def counted(number: object, noun: str) -> str:
    """So many of something."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def amount_of(amount: float, resource: str) -> str:
    """So much of a resource, as `Resources` names it."""
    return f"{amount} {resource[:-1] if amount == 1 and resource in PLURALS else resource}"
