"""What a change of virtual clusters and policy would have made of the last days, as the Scheduler
answers it, and whether an administrator must accept that before the change is made.
"""

from dataclasses import dataclass
from typing import Any, Literal

from muster.errors import Problem, Rejected, Transient
from pydantic import BaseModel, ConfigDict, ValidationError

from rest.peers import Peers
from rest.settings import RestSettings

WHAT_IF = "/configuration/what-if"

DELAYS, RUNNING, FAILED = "DelaysConfigError", "WhatIfRunningError", "WhatIfFailedError"

SENTENCES = 20
"""Of a report, in an entry of the audit log."""


class MovedGangs(BaseModel):
    """Gangs that start at another time."""

    gangs: int
    meanSeconds: float | None = None


class BeforeAfter(BaseModel):
    """A number without the change, and with it."""

    before: float
    after: float


class VirtualClusterEffect(BaseModel):
    """What becomes of a virtual cluster's gangs."""

    virtualCluster: str
    text: str
    later: MovedGangs
    notStarted: int
    refused: BeforeAfter

    def is_harmed(self, delay_s: float) -> bool:
        """Its gangs start no more, or later by so much."""
        is_delayed = self.later.gangs > 0 and (self.later.meanSeconds or 0.0) >= delay_s
        return is_delayed or self.notStarted > 0 or self.refused.after > self.refused.before

    def problem(self) -> Problem:
        """The same as a problem in an answer."""
        return Problem(f"virtualClusters.{self.virtualCluster}", self.text)


class Report(BaseModel):
    """What was found: in sentences, in a table as people read it, and in numbers (docs/simulator.md
    has all of them). It is about ``days`` of the record, from ``since`` to ``until``, in seconds
    since 1970; ``isPartial``: there was no time for all that were asked for.
    """

    model_config = ConfigDict(extra="allow")

    since: float
    until: float
    days: float
    isPartial: bool
    tookSeconds: float
    text: list[str]
    table: str
    virtualClusters: list[VirtualClusterEffect]


class _Comparison(BaseModel):
    """The Scheduler's answer."""

    state: Literal["running", "done", "none", "failed"]
    reason: str | None = None
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is known of a change. ``state``: ``done``, with a ``report``; ``none``, there is nothing
    to compare, or ``failed``, both with a ``reason``; ``running``: it takes longer; ``skipped``: it
    was not asked. ``harmed``: a problem for each virtual cluster whose delay must be accepted.
    """

    state: str
    reason: str | None = None
    report: Report | None = None
    harmed: tuple[Problem, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """As it is answered."""
        return {
            "state": self.state,
            "reason": self.reason,
            "needsAcceptance": bool(self.harmed),
            "report": None if self.report is None else self.report.model_dump(mode="json"),
        }

    def audited(self) -> dict[str, Any] | None:
        """As it is kept with the change; None: there was nothing to compare."""
        if self.report is None:
            return None if self.state == "none" else {"state": self.state}
        report = self.report
        found = {"text": report.text[:SENTENCES], "days": report.days}
        if report.isPartial:
            found["isPartial"] = True
        return found | ({"accepted": True} if self.harmed else {})


SKIPPED = WhatIf("skipped")


class WhatIfs:
    """Asks the Scheduler."""

    def __init__(self, peers: Peers, settings: RestSettings) -> None:
        self._peers = peers
        self._settings = settings

    async def ask(self, text: bytes) -> WhatIf:
        """About a text that can be set. Raises Transient where the Scheduler does not answer."""
        within_s = self._settings.config_what_if_s
        answer = await self._peers.ask_scheduler_about(WHAT_IF, text, within_s)
        if answer is None:
            return WhatIf("failed", "The Scheduler can't compare changes.")
        try:
            comparison = _Comparison.model_validate(answer)
        except ValidationError as error:
            raise Transient("The Scheduler's comparison can't be read. Try again later.") from error
        rows = [] if comparison.report is None else comparison.report.virtualClusters
        delay_s = self._settings.config_delay_s
        harmed = tuple(row.problem() for row in rows if row.is_harmed(delay_s))
        return WhatIf(comparison.state, comparison.reason, comparison.report, harmed)

    async def must_admit(self, text: bytes, *, accepts_delays: bool) -> WhatIf:
        """The same, before a change. Raises Rejected where it is not to be made yet."""
        try:
            found = await self.ask(text)
        except Transient as error:
            found = WhatIf("failed", str(error))
        if found.state == "running":
            message = (
                "The comparison with the last days still runs: send the request again in some"
                " seconds, or send whatIf=false to skip it."
            )
            raise Rejected(RUNNING, message)
        if found.state == "failed":
            message = f"The comparison with the last days failed: {found.reason}"
            raise Rejected(FAILED, f"{message} Send whatIf=false to skip it.")
        if found.harmed and not accepts_delays:
            raise Rejected(DELAYS, _refusal(found), found.harmed)
        return found


def _refusal(found: WhatIf) -> str:
    assert found.report is not None
    first, rest = found.harmed[0].message, len(found.harmed) - 1
    more = f" So it is with {rest} more virtual clusters." if rest else ""
    text = f"On the events of {found.report.days:g} days: {first}{more}"
    return f"{text} Send acceptDelays=true to set it all the same."
