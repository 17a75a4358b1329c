"""What has changed, as numbers that only grow: what failed under a stamp need not be tried again
under the same one.
"""

from collections import defaultdict

from scheduler.domain.core.charges import Charges
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.queue import Stamp


class Stamps:
    """``versions[owner]``: raised when something of an owner's quota becomes free."""

    def __init__(self, hardware: Hardware, charges: Charges) -> None:
        self.hardware = hardware
        self.charges = charges
        self.versions: defaultdict[str, int] = defaultdict(int)
        self.touched = 0

    def progress(self) -> tuple[int, int, int]:
        """Changes whenever something becomes free."""
        return self.hardware.unbound_version, self.hardware.free_version, self.touched

    def state(self) -> Stamp:
        """What reasons depend on, as versions."""
        return (*self.progress(), self.hardware.usable_version, self.hardware.taken_version)

    def of_quota(self, owner: str, priority: int = 0) -> Stamp:
        """What of an owner's quota may be had, as versions: by gangs of a priority also what those
        of lower ones have.
        """
        unbound = self.hardware.unbound.get(owner)
        can_bind = unbound is not None and (
            any(unbound.values()) or self.charges.has_lower(owner, priority)
        )
        bindable = self.hardware.unbound_version if can_bind else -1
        return self.versions.get(owner, 0), bindable

    def touch(self, owner: str) -> None:
        """Something of the owner's quota has become free."""
        self.touched += 1
        self.versions[owner] += 1
