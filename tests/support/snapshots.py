"""A snapshot of a core in one step."""

from scheduler.domain.core.interface import Core
from scheduler.domain.formats.snapshot import Taken, taking


def take(core: Core) -> Taken:
    """The present state."""
    taken = Taken()
    for _ in taking(core, taken):
        pass
    return taken
