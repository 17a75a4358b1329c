"""After a decision: the topic of its message, and its line in the log."""

from typing import assert_never

import structlog

from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Grown,
    Placed,
    Preempted,
    PreemptionCancelled,
    Refused,
    Reserved,
    Shrunk,
    Upgraded,
)
from scheduler.domain.formats.decisions import decision_fields
from scheduler.domain.messages import DECIDED, DEFERRED, PREEMPTED, REFUSED

_log = structlog.get_logger()

_RANKS = (DEFERRED, REFUSED, DECIDED, PREEMPTED)
"""If a gang has several topics in a cycle, its message goes to the last of these."""


def topic_of(decision: Decision, before: str | None) -> str:
    """The topic of the gang's message; ``before``: the topic of another decision about it."""
    match decision:
        case Placed() | Grown() | Downgraded() | Upgraded():
            topic = DECIDED
        case Deferred() | PreemptionCancelled() | Reserved():
            topic = DEFERRED
        case Refused():
            topic = REFUSED
        case Preempted() | Shrunk():
            topic = PREEMPTED
        case _:
            assert_never(decision)
    return topic if before is None else max(topic, before, key=_RANKS.index)


def name_of(decision: Decision) -> str:
    """The decision's name in the simulator's lines."""
    return str(decision_fields(decision)["decision"])


def log(decision: Decision) -> None:
    """It is committed."""
    match decision:
        case (
            Placed(gang=gang, pods=pods, lender=lender) | Grown(gang=gang, pods=pods, lender=lender)
        ):
            nodes = sorted({pod.node for pod in pods})
            _log.info(name_of(decision), gang=gang, nodes=nodes, lender=lender)
        case Deferred(gang=gang, reason=reason):
            _log.info("waits", gang=gang, code=reason.code, reason=reason.text)
        case Refused(gang=gang, reason=reason):
            _log.info("refused", gang=gang, code=reason.code, reason=reason.text)
        case Preempted(gang=gang, for_gang=other, until=until, reason=reason):
            _log.info(
                "preempted",
                gang=gang,
                for_gang=other,
                until=until,
                code=reason.code,
                reason=reason.text,
            )
        case Shrunk(gang=gang, pods=names, for_gang=other, until=until):
            _log.info("shrunk", gang=gang, pods=list(names), for_gang=other, until=until)
        case Downgraded(gang=gang, for_gang=other):
            _log.info("downgraded", gang=gang, for_gang=other)
        case Reserved(gang=gang, cells=cells, starts_at=at):
            _log.info("reserved", gang=gang, nodes=[node for node, _ in cells], starts_at=at)
        case PreemptionCancelled(gang=gang) | Upgraded(gang=gang):
            _log.info(name_of(decision), gang=gang)
        case _:
            assert_never(decision)
