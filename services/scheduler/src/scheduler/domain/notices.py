"""Who is told when why it waits: at once where that is new, else once in a while."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from muster.contracts.gangs import Preemption
from muster.contracts.model import Reason

from scheduler.domain.core import model
from scheduler.domain.moments import moment, time_of
from scheduler.domain.requests import Asked
from scheduler.domain.rules import Rules


class Notices:
    """``untold``: gangs that have not been told their reason, in order."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.unpublished: dict[str, None] = {}
        self._published: deque[tuple[float, str]] = deque()

    def note(self, gang: Asked, reason: Reason | None, now: float) -> None:
        """The gang was told this now, or before a restart."""
        gang.published_reason, gang.published_at = reason, now
        if reason is not None:
            self._published.append((now, gang.name))

    def due(
        self,
        gangs: dict[str, Asked],
        reason_of: Callable[[str], Reason | None],
        now: float,
        *,
        is_settled: bool,
        is_under_way: bool,
    ) -> Iterator[tuple[str, Reason]]:
        """Whom to tell what now, a bounded number. While nodes come one by one after a start
        nobody is told again and again. While a cycle is under way nobody is forgotten who has no
        reason: it may wait and be tried in what is left of it.
        """
        published, again = 0, [] if is_under_way else self._stale(gangs, reason_of, now)
        for name in [*self.unpublished, *again]:
            gang = gangs.get(name)
            reason = None if gang is None or gang.is_refused else reason_of(name)
            if gang is None or reason is None:
                if not is_under_way:
                    self.unpublished.pop(name, None)
                continue
            if not is_settled and gang.published_reason is not None:
                continue
            if published == self.rules.cycle_gangs:
                self.unpublished[name] = None
                continue
            self.unpublished.pop(name, None)
            if gang.published_reason != reason and self._is_news(gang, reason, now):
                published += 1
                self.note(gang, reason, now)
                yield name, reason

    def _is_news(self, gang: Asked, reason: Reason, now: float) -> bool:
        if gang.published_reason is None or gang.published_reason.code != reason.code:
            return True
        return now - gang.published_at >= self.rules.defer_again_s

    def _stale(
        self, gangs: dict[str, Asked], reason_of: Callable[[str], Reason | None], now: float
    ) -> list[str]:
        """Gangs whose last word is old enough to be said again; a bounded number."""
        names: list[str] = []
        while self._published and len(names) < self.rules.defer_again_gangs:
            at, name = self._published[0]
            if now - at < self.rules.defer_again_s:
                break
            self._published.popleft()
            gang = gangs.get(name)
            if gang is None or gang.published_reason is None or gang.published_at != at:
                continue
            reason = reason_of(name)
            if reason is None:
                continue
            if gang.published_reason == reason:
                self.note(gang, reason, now)
            elif name not in self.unpublished:
                names.append(name)
        return names


TIMES = {
    "startsAt": "from {} on",
    "protectedUntil": "until {} at the least",
    "until": "by {} at the latest",
}
"""Numbers of a reason that are seconds of the clock, and how its text has them."""


def published_reason(
    reason: model.Reason, gangs: Mapping[str, Asked], expected_at: float | None = None
) -> Reason:
    """A reason as it is said, with the expected start where it is known; the gang that it is about
    as its owner calls it.
    """
    numbers, text = dict(reason.numbers), reason.text
    for name, words in TIMES.items():
        at = numbers.get(name)
        if isinstance(at, int | float):
            numbers[name] = when = time_of(at)
            text = text.replace(words.format(f"{at:.15g}"), words.format(when))
    if expected_at is not None:
        numbers["expectedStart"] = time_of(expected_at)
    text = _named(text, numbers.get("for"), gangs)
    return Reason(code=reason.code, text=text, numbers=numbers)


def _named(text: str, gang: object, gangs: Mapping[str, Asked]) -> str:
    """A text with the name of a gang in place of its id."""
    asked = gangs.get(gang) if isinstance(gang, str) else None
    if asked is None:
        return text
    return text.replace(asked.name, f"{asked.request.user}~{asked.request.name}")


def note_preemption(
    gang: Asked, decision: model.Preempted | model.Shrunk, gangs: Mapping[str, Asked]
) -> None:
    """A gang is told to leave, or some of its pods are."""
    when, said = moment(decision.until), published_reason(decision.reason, gangs)
    reason = said.model_copy(update={"text": _named(said.text, decision.for_gang, gangs)})
    if isinstance(decision, model.Shrunk):
        if gang.leaving and gang.preemption is not None:  # others are awaited, earlier
            when = min(when, gang.preemption.until)
        gang.leaving.update(decision.pods)
    else:
        gang.leaving.clear()
    gang.preemption = Preemption(gang=decision.for_gang, until=when, reason=reason)


def until_released(reason: model.Reason) -> Reason:
    """The same for a gang with a reservation, in the words of a clock and a calendar."""
    if reason.numbers["until"] is not None:
        return published_reason(reason, {})
    text = "It starts when what ended pods held is free."
    return Reason(code=reason.code, text=text, numbers=dict(reason.numbers))
