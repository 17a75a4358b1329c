"""What becomes of gangs by what the core decides."""

from typing import TYPE_CHECKING, assert_never

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
from scheduler.domain.simulation.agenda import End
from scheduler.domain.simulation.gang_run import GangRun

if TYPE_CHECKING:
    from scheduler.domain.simulation.run import Simulation


def follow(simulation: "Simulation", decision: Decision) -> None:
    """A gang starts, leaves, or waits for another reason."""
    gang = decision.gang
    if isinstance(decision, PreemptionCancelled):  # told of withdrawn gangs too
        simulation.tally.cancelled += 1
        return
    run = simulation.runs[gang]
    group = simulation.tally.group(run)
    match decision:
        case Placed(_, places):
            simulation.tally.start(run, places)
            run.start(simulation.tally.now, places)
            simulation.note_end(gang)
        case Grown(_, places):
            run.add(simulation.tally.now, places)
            simulation.note_end(gang)
            simulation.tally.space.take(places)
        case Shrunk(_, pods, until=until):
            group.shrunk += len(pods)
            for pod in pods if simulation.policy.is_enforced else ():
                simulation.agenda.add_pod(until, gang, pod)
        case Deferred(_, reason):
            run.code = reason.code
        case Refused():
            group.refused += 1
            _forget_refused(simulation, gang, run)
        case Preempted(until=until):
            group.preempted += 1
            if simulation.policy.is_enforced:
                simulation.agenda.add(until, End.GRACE, gang)
        case Downgraded():
            group.downgraded += 1
        case Upgraded() | Reserved():
            simulation.tally.upgraded += isinstance(decision, Upgraded)
        case _:
            assert_never(decision)


def _forget_refused(simulation: "Simulation", gang: str, run: GangRun) -> None:
    """A refused gang is over; of one that runs, only its growth."""
    if not run.places:
        del simulation.runs[gang]
        simulation.agenda.forget(gang)
        simulation.cluster.release(gang)
        return
    for pod in run.without_place():
        run.remove(pod)
        simulation.cluster.release_pod(gang, pod)
