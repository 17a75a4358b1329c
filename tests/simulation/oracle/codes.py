"""Why gangs wait: what was told last, and whether that is what the definitions say."""

from collections.abc import Iterator

from scheduler.domain.core.model import Deferred, Gang

from oracle.fitting import TooHardError
from oracle.judge import Judge
from oracle.quota import numbers_of, shortage
from oracle.state import State

QUOTA_NUMBERS = frozenset(("cellsWanted", "cellsLeft", "gpuType", "pin"))


class Codes:
    """``told``: the last code of each gang that waits. ``may_repeat``: gangs that lost what was
    reserved for them; the same code may be told to them again, or not.
    """

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.may_repeat: set[str] = set()
        self._doubts: list[tuple[Gang, str, str]] = []
        self._untold: list[str] = []
        self._numbers: list[tuple[Gang, Deferred, dict[str, object]]] = []

    def note(
        self,
        gang: Gang,
        told: Deferred | None,
        expected: str | None,
        state: State | None = None,
    ) -> Iterator[str]:
        """A gang waits; ``expected`` None: for a reason that is not known. ``state``: in which what
        it is told of its quota is judged.
        """
        if state is not None and told is not None and told.reason.code == "quota":
            self._numbers.append((gang, told, numbers_of(shortage(state, gang))))
        before = self.told.get(gang.id)
        if told is not None:
            self.told[gang.id] = told.reason.code
            if told.reason.code == before and gang.id not in self.may_repeat:
                yield f"expected: {gang.id} is not told {before} again"
        code = self.told.get(gang.id)
        if code is None:
            self._untold.append(gang.id)
        elif expected is not None and code != expected:
            self._doubts.append((gang, code, expected))

    def doubts(self, state: State, judge: Judge | None) -> Iterator[str]:
        """At the end of a cycle: a reason may be that of the gang's turn or of this moment."""
        for gang, code, expected in self._doubts:
            try:
                later = judge.code(gang) if judge else None
            except TooHardError:
                continue
            if code != later:
                text = f"the definitions say {expected}, after the cycle {later}"
                yield f"{gang.id} waits for {code}; {text}"
        for gang, told, expected_then in self._numbers:
            now = numbers_of(shortage(state, gang))
            said = {name: n for name, n in told.reason.numbers.items() if name in QUOTA_NUMBERS}
            if said not in (expected_then, now):
                yield f"{gang.id} is told {said}; it is {expected_then}, after the cycle {now}"
        self._doubts, self._numbers = [], []

    def untold(self, state: State) -> Iterator[str]:
        """At the end of a cycle: gangs that wait and do not know why."""
        for name in self._untold:
            whole = state.records.get(name.rstrip("+"))
            if whole is None or not whole.is_leaving:
                yield f"{name} waits and is not told why"
        self._untold = []
