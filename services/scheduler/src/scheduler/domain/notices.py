"""Which gangs are notified of their wait reason: of a new one at once, else once in a while."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from muster.contracts.gangs import Preemption
from muster.contracts.model import Reason

from scheduler.domain.core import model
from scheduler.domain.moments import moment, time_of
from scheduler.domain.requests import Asked
from scheduler.domain.rules import Rules


class Notices:
    """``unpublished``: gangs whose reason is not published yet, in order."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.unpublished: dict[str, None] = {}
        self._published: deque[tuple[float, str]] = deque()

    def note(self, gang: Asked, reason: Reason | None, now: float) -> None:
        """The gang's message has this reason now, or had it before a restart."""
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
        """The gangs to notify now, with their reasons, a bounded number. While nodes join one by
        one after a start, no gang is notified twice. While a cycle is under way, a gang without a
        reason stays listed: the rest of the cycle may try it.
        """
        published, again = 0, [] if is_under_way else self._stale(gangs, reason_of, now)
        for name in [*self.unpublished, *again]:
            if published == self.rules.cycle_gangs:  # a reason takes long where thousands wait
                self.unpublished[name] = None
                continue
            gang = gangs.get(name)
            reason = None if gang is None or gang.is_refused else reason_of(name)
            if gang is None or reason is None:
                if not is_under_way:
                    self.unpublished.pop(name, None)
                continue
            if not is_settled and gang.published_reason is not None:
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
        """Gangs whose last message is old enough to be republished; a bounded number."""
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
    "keptUntil": "are kept until {} for",
}
"""Numbers of a reason that are seconds of the clock, and how its text has them."""


def published_reason(
    reason: model.Reason, gangs: Mapping[str, Asked], expected_at: float | None = None
) -> Reason:
    """A reason as published, with the expected start if known. Its gang has the name that its
    owner uses.
    """
    numbers, text = dict(reason.numbers), reason.text
    for name, phrase in TIMES.items():
        at = numbers.get(name)
        if isinstance(at, int | float):
            numbers[name] = when = time_of(at)
            text = text.replace(phrase.format(f"{at:.15g}"), phrase.format(when))
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
    """A gang is preempted, or some of its pods are."""
    when, published = moment(decision.until), published_reason(decision.reason, gangs)
    text = _named(published.text, decision.for_gang, gangs)
    reason = published.model_copy(update={"text": text})
    if isinstance(decision, model.Shrunk):
        if gang.leaving and gang.preemption is not None:  # an earlier end is awaited
            when = min(when, gang.preemption.until)
        gang.leaving.update(decision.pods)
    else:
        gang.leaving.clear()
    gang.preemption = Preemption(gang=decision.for_gang, until=when, reason=reason)


def until_released(reason: model.Reason) -> Reason:
    """The same for a gang with a nominated placement, with moments as text."""
    if reason.numbers["until"] is not None:
        return published_reason(reason, {})
    text = "It starts when what ended pods held is free."
    return Reason(code=reason.code, text=text, numbers=dict(reason.numbers))
