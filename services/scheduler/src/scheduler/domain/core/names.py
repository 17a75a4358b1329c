"""Whether a gang names only what it may use: who does not is refused, whatever is free."""

from scheduler.domain.core.config import listed
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind


def are_known(hardware: Hardware, live: Live) -> bool:
    """It may use all that it names."""
    forest = hardware.forest
    if live.gang.virtual_cluster not in forest.quotas:
        return False
    for role in live.waiting:
        kind = role.kind
        if kind.pin is not None or (kind.gpu_types and kind.gpu_types[0] not in forest.racks):
            return wrong_name(hardware, live) is None
    return True


def wrong_name(hardware: Hardware, live: Live) -> tuple[str, str] | None:
    """The first name that is wrong, as the code and the text of a refusal; None: all are right."""
    gang, owners = live.gang, hardware.forest.quotas
    if gang.virtual_cluster not in owners:
        text = f"There is no virtual cluster {gang.virtual_cluster}; there are {listed(owners)}."
        return "unknown-virtual-cluster", text
    found = (_wrong(hardware, gang, role.kind) for role in live.waiting)
    return next((each for each in found if each is not None), None)


def _wrong(hardware: Hardware, gang: Gang, kind: Kind) -> tuple[str, str] | None:
    forest, types, pin = hardware.forest, kind.gpu_types, kind.pin
    wanted = " or ".join(types)
    if types and forest.racks.keys().isdisjoint(types):
        text = f"There is no GPU type {wanted}; there are {listed(forest.gpu_types)}."
        return "unknown-gpu-type", text
    if pin is None:
        return None
    if forest.pin_owners.get(pin) != gang.virtual_cluster:
        return "unknown-pin", f"{gang.virtual_cluster} owns no pinned cell {pin}."
    if gang.priority == OPPORTUNISTIC:
        return "pin", "An opportunistic gang can't use a pinned cell."
    pinned = hardware.owning.pin_types[pin]
    if types and pinned not in types:
        return "pin", f"The pinned cell {pin} has GPUs of type {pinned}, not {wanted}."
    return None
