"""Why gangs wait: what was told last, and whether that is what the definitions say."""

from collections.abc import Iterator

from scheduler.domain.core.model import Deferred, Gang

from oracle.fitting import TooHardError
from oracle.judge import Judge
from oracle.state import State


class Codes:
    """``told``: the last code of each gang that waits. ``may_repeat``: gangs that lost what was
    reserved for them; the same code may be told to them again, or not.
    """

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.may_repeat: set[str] = set()
        self._doubts: list[tuple[Gang, str, set[str]]] = []
        self._untold: list[str] = []

    def note(self, gang: Gang, told: Deferred | None, expected: set[str] | None) -> Iterator[str]:
        """A gang waits; ``expected`` None: for a reason that is not known."""
        before = self.told.get(gang.id)
        if told is not None:
            self.told[gang.id] = told.reason.code
            if told.reason.code == before and gang.id not in self.may_repeat:
                yield f"expected: {gang.id} is not told {before} again"
        code = self.told.get(gang.id)
        if code is None:
            self._untold.append(gang.id)
        elif expected is not None and code not in expected:
            self._doubts.append((gang, code, expected))

    def check(self, state: State, judge: Judge | None) -> Iterator[str]:
        """At the end of a cycle: a reason may be that of the gang's turn or of this moment."""
        for gang, code, expected in self._doubts:
            try:
                later = judge.codes(gang) if judge else None
            except TooHardError:
                continue
            if code not in (later or ()):
                text = f"the definitions say {sorted(expected)}, after the cycle {later}"
                yield f"{gang.id} waits for {code}; {text}"
        for name in self._untold:
            whole = state.records.get(name.rstrip("+"))
            if whole is None or not whole.is_leaving:
                yield f"{name} waits and is not told why"
        self._doubts, self._untold = [], []
