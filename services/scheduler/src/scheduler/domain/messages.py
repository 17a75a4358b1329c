"""The Scheduler's complete message about a gang, as of now."""

from muster.contracts.gangs import (
    GangClass,
    GangDecision,
    GangRequest,
    PodDecision,
    PodDecisionState,
    Wait,
)
from muster.contracts.model import Reason

from scheduler.domain.moments import moment
from scheduler.domain.placements import Hold
from scheduler.domain.requests import Asked
from scheduler.domain.state import State

DECIDED, DEFERRED, REFUSED, PREEMPTED = (
    "placement-decided",
    "placement-deferred",
    "placement-refused",
    "gang-preempted",
)

POSITIONS_PUBLISHED = 256
"""With at most so many waiting gangs each message has the position, which takes some ms for all.
With more, only an HTTP answer has it.
"""


def message_of(state: State, gang: Asked, epoch: int) -> GangDecision:
    """Each pod of the gang: placed, preempted, lost, waiting or refused."""
    unplaced = PodDecisionState.REFUSED if gang.is_refused else PodDecisionState.WAITING
    is_leaving = gang.preemption is not None
    pods = []
    for pod in gang.asks:
        hold = state.ledger.hold_of(pod)
        pods.append(
            PodDecision(pod=pod, state=unplaced)
            if hold is None
            else placed(hold, is_leaving=is_leaving and (not gang.leaving or pod in gang.leaving))
        )
    is_waiting = any(pod.state is unplaced for pod in pods)
    known = state.core.gang(gang.name)
    gang_class = None if known is None or known.started_at is None else known.gang_class
    return GangDecision(
        gang=gang.name,
        job=gang.request.job,
        epoch=epoch,
        gang_class=None if gang_class is None else GangClass(gang_class.value),
        lender=None if known is None or gang_class is None else known.lender,
        pods=tuple(pods),
        reason=gang.published_reason if is_waiting else None,
        preemption=gang.preemption,
        wait=_wait(state, gang),
    )


def _wait(state: State, gang: Asked) -> Wait | None:
    """The cheap facts about a waiting gang."""
    if not state.is_waiting(gang.name):
        return None
    core = state.core
    if gang.name in state.withheld:
        return Wait(as_of=core.cycles)
    is_short = core.questions.has_at_most(POSITIONS_PUBLISHED)
    ahead = core.questions.ahead(gang.name) if is_short else None
    kept_at = core.questions.starts_at(gang.name)
    return Wait(
        as_of=core.cycles,
        position=None if ahead is None else ahead.position,
        waiting=None if ahead is None else ahead.waiting,
        expected_start=None if kept_at is None else moment(kept_at),
    )


def ended(request: GangRequest, epoch: int) -> GangDecision:
    """The gang's end is known. Pods that a Launcher still lists after a loss of data are lost:
    these names may have run.
    """
    lost = tuple(PodDecision(pod=ask.pod, state=PodDecisionState.LOST) for ask in request.pods)
    text = "The gang has ended. Its pods are not placed again under the same names."
    reason = Reason(code="ended", text=text) if lost else None
    return GangDecision(gang=request.gang, job=request.job, epoch=epoch, pods=lost, reason=reason)


def placed(hold: Hold, *, is_leaving: bool = False) -> PodDecision:
    """A pod that was placed, or lost since."""
    place = hold.placement
    state = PodDecisionState.PREEMPTED if is_leaving else PodDecisionState.PLACED
    return PodDecision(
        pod=place.pod,
        state=PodDecisionState.LOST if hold.is_lost else state,
        node=place.node,
        address=place.address,
        log_url=place.log_url,
        journal=place.journal,
        gpus=place.gpus,
        ports=dict(place.ports),
        secrets_key=place.secrets_key,
    )
