"""The gangs that run without their cells, and what each of them waits for to have them again."""

from collections.abc import Collection, Iterable

from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import SlotState


class DowngradedGangs:
    """``gangs``: their ids. ``_held``: by node's number those that can't be raised while it is as
    it is.
    """

    def __init__(self) -> None:
        self.gangs: set[str] = set()
        self._stirred: set[str] = set()
        self._held: dict[int, set[str]] = {}
        self._read = -1

    def add(self, gang: str) -> None:
        """It has no cells from now on."""
        self.gangs.add(gang)
        self._stirred.add(gang)

    def discard(self, gang: str) -> None:
        """It has its cells again, leaves, or is over."""
        self.gangs.discard(gang)
        self._stirred.discard(gang)

    def stirred(self, hardware: Hardware) -> Collection[str]:
        """Those that no node holds back that is as it was."""
        if self._held:
            self._read, numbers = hardware.changed_since(self._read)
            for number in list(self._held) if numbers is None else numbers:
                if gangs := self._held.pop(number, None):
                    self._stirred |= gangs & self.gangs
        return self._stirred

    def hold(self, gang: str, states: Iterable[SlotState], hardware: Hardware) -> None:
        """As long as none of these changes the gang can't be raised, whatever its quota."""
        if not self._held:
            self._read, _ = hardware.changed_since(self._read)
        for state in states:
            self._held.setdefault(state.slot.number, set()).add(gang)
        self._stirred.discard(gang)
