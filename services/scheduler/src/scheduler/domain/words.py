"""The Scheduler's whole word about a gang, as it stands now."""

from muster.contracts.gangs import GangDecision, GangRequest, PodDecision, PodDecisionState
from muster.contracts.model import Reason

from scheduler.domain.cluster import Cluster
from scheduler.domain.gangs import Gang
from scheduler.domain.model import Hold

DECIDED, DEFERRED, REFUSED = "placement-decided", "placement-deferred", "placement-refused"


def word_of(cluster: Cluster, gang: Gang, epoch: int) -> GangDecision:
    """Each pod of the gang: placed, lost, waiting or refused."""
    unplaced = PodDecisionState.REFUSED if gang.is_refused else PodDecisionState.WAITING
    pods = []
    for pod in gang.specs:
        hold = cluster.hold_of(pod)
        pods.append(PodDecision(pod=pod, state=unplaced) if hold is None else placed(hold))
    reason = gang.said if cluster.is_waiting(gang.name) or gang.is_refused else None
    return word(gang.request, epoch, tuple(pods), reason)


def ended(request: GangRequest, epoch: int) -> GangDecision:
    """The gang's end is known."""
    return word(request, epoch, (), None)


def word(
    request: GangRequest, epoch: int, pods: tuple[PodDecision, ...], reason: Reason | None
) -> GangDecision:
    """A word about the gang."""
    return GangDecision(gang=request.gang, job=request.job, epoch=epoch, pods=pods, reason=reason)


def placed(hold: Hold) -> PodDecision:
    """A pod that was placed, or lost since."""
    place = hold.placement
    is_lost = hold.lost_lease is not None
    return PodDecision(
        pod=place.pod,
        state=PodDecisionState.LOST if is_lost else PodDecisionState.PLACED,
        node=place.node,
        address=place.address,
        log_url=place.log_url,
        journal=place.journal,
        gpus=place.gpus,
        ports=dict(place.ports),
    )
