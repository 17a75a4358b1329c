"""Whether a gang names only what it may use: who does not is refused, whatever is free."""

from collections.abc import Iterable

from scheduler.domain.core.config import listed
from scheduler.domain.core.forest import Forest
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind


def wrong_in(forest: Forest, gang: Gang, kinds: Iterable[Kind]) -> tuple[str, str] | None:
    """The first name that is wrong, as the code and the text of a refusal; None: all are right."""
    owners = forest.quotas
    if gang.virtual_cluster not in owners:
        text = f"There is no virtual cluster {gang.virtual_cluster}; there are {listed(owners)}."
        return "unknown-virtual-cluster", text
    for kind in kinds:
        if not (kind.gpu_types or kind.pin):
            continue
        if (found := _wrong(forest, gang, kind)) is not None:
            return found
    return None


def _wrong(forest: Forest, gang: Gang, kind: Kind) -> tuple[str, str] | None:
    types, pin = kind.gpu_types, kind.pin
    if types and forest.racks.keys().isdisjoint(types):
        text = f"There is no GPU type {' or '.join(types)}; there are {listed(forest.gpu_types)}."
        return "unknown-gpu-type", text
    if pin is None:
        return None
    if forest.pin_owners.get(pin) != gang.virtual_cluster:
        return "unknown-pin", f"{gang.virtual_cluster} owns no pinned cell {pin}."
    if gang.priority == OPPORTUNISTIC:
        return "pin", "An opportunistic gang can't use a pinned cell."
    pinned = forest.pin_type(pin)
    if types and pinned not in types:
        text = f"The pinned cell {pin} has GPUs of type {pinned}, not {' or '.join(types)}."
        return "pin", text
    return None
