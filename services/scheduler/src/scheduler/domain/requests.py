"""The Launcher's messages about gangs, as the core takes them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from muster.contracts.gangs import GangEnd, GangRequest, PodAsk, Preemption
from muster.contracts.model import Reason
from muster.contracts.nodes import NodeReport

from scheduler.domain.core.model import (
    HIGHEST_PRIORITY,
    OPPORTUNISTIC,
    Gang,
    Kind,
    PodPlace,
    Role,
)
from scheduler.domain.placements import Placement
from scheduler.domain.run_times import LONGEST_S, Key, Run, pattern_of

TAUGHT_BY = frozenset((GangEnd.SUCCEEDED, GangEnd.STOPPED, GangEnd.LIMIT))
"""Ends from which run times are learnt. A preempted gang would have run on; a failed one runs on
after a fix.
"""

USER_LENGTH = 64
"""The most characters of a user in a key of run times: REST's bound of users' names."""


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A gang runs without its cells, since ``at`` seconds. ``for_gang`` None: a change of the
    configuration took its quota.
    """

    for_gang: str | None
    at: float


@dataclass(slots=True)
class Asked:
    """A gang that is not over, as the Launcher wants it and as the Scheduler last published it.

    ``published_reason``: the reason in its last message, of ``published_at``.
    ``preemption``: it is preempted; ``leaving``: only these pods of it are. ``downgrade``: since
    when and for which gang it has no cells. ``shape``: of all pods of its first request;
    ``expected_s``: its expected run time, as learnt then. ``ran_from``: the start of its last
    released pods. ``job``: as its first message names it.
    """

    request: GangRequest
    asks: dict[str, PodAsk] = field(default_factory=dict)
    published_reason: Reason | None = None
    published_at: float = 0.0
    is_refused: bool = False
    preemption: Preemption | None = None
    downgrade: Downgrade | None = None
    leaving: set[str] = field(default_factory=set)
    shape: str | None = None
    expected_s: float | None = None
    ran_from: float | None = None
    job: str = field(init=False)

    def __post_init__(self) -> None:
        self.job = self.request.job

    @property
    def name(self) -> str:
        """Its id."""
        return self.request.gang

    def has_left(self, pod: str) -> None:
        """A pod is over; after the last of the preempted pods the partial preemption ends."""
        if pod in self.leaving:
            self.leaving.discard(pod)
            if not self.leaving:
                self.preemption = None


class Jobs:
    """The gangs of each job that are not over."""

    def __init__(self) -> None:
        self._gangs: dict[str, dict[str, Asked]] = {}

    def add(self, gang: Asked) -> None:
        """One more."""
        self._gangs.setdefault(gang.job, {})[gang.name] = gang

    def remove(self, gang: Asked) -> None:
        """It is over."""
        gangs = self._gangs[gang.job]
        del gangs[gang.name]
        if not gangs:
            del self._gangs[gang.job]

    def gangs_of(self, job: str) -> list[Asked]:
        """A job's, by id."""
        return [gang for _, gang in sorted(self._gangs.get(job, {}).items())]


def kind_of(ask: PodAsk) -> Kind:
    """A pod's request."""
    return Kind(
        gpus=ask.gpus,
        gpu_types=ask.gpu_types,
        pin=ask.pin,
        cpu=ask.cpu,
        memory_mb=ask.memory_mb,
        ports=sum(count for count in ask.ports.values() if count > 0),
        resources=tuple(sorted((name, n) for name, n in ask.resources.items() if n > 0)),
    )


def roles_of(pods: Iterable[tuple[str, Kind]], surplus: Collection[str] = ()) -> tuple[Role, ...]:
    """Pods with equal requests, together, in the order of the first of each. ``surplus``: pods that
    the gang can do without.
    """
    kinds: dict[Kind, list[str]] = {}
    for pod, kind in pods:
        kinds.setdefault(kind, []).append(pod)
    if surplus:
        return tuple(_elastic(kind, names, surplus) for kind, names in kinds.items())
    return tuple(Role(kind, tuple(names)) for kind, names in kinds.items())


def _elastic(kind: Kind, pods: Iterable[str], surplus: Collection[str]) -> Role:
    names = tuple(sorted(pods, key=surplus.__contains__))  # the needed ones come first
    least = sum(pod not in surplus for pod in names)
    return Role(kind, names, least=least if least < len(names) else None)


def surplus_of(asks: Iterable[PodAsk]) -> frozenset[str]:
    """The pods that a gang can do without."""
    return frozenset([ask.pod for ask in asks if ask.surplus])


def key_of(request: GangRequest, shape: str) -> Key:
    """The kind of gangs that this run counts for."""
    return Key(request.user[:USER_LENGTH], pattern_of(request.name), shape)


def expected_of(request: GangRequest, learnt_s: float | None) -> float | None:
    """The gang's expected run time, in seconds: its user's, else the learnt one, and at most its
    limit.
    """
    expected_s = learnt_s if request.expected_s is None else float(request.expected_s)
    if expected_s is None or request.limit_s is None:
        return expected_s
    return min(expected_s, float(request.limit_s))


def run_of(gang: Asked, at: float) -> Run | None:
    """The run to learn from the gang's end, at ``at`` seconds, which its last message has."""
    request = gang.request
    if gang.ran_from is None or gang.shape is None or request.end not in TAUGHT_BY:
        return None
    return Run(
        key_of(request, gang.shape),
        at,
        min(max(ceil(at - gang.ran_from), 1), LONGEST_S),
        expected_of(request, gang.expected_s),
        is_learnt=request.expected_s is None,
    )


def gang_of(request: GangRequest, roles: tuple[Role, ...], learnt_s: float | None) -> Gang:
    """The gang with these of its pods."""
    is_preflight, priority = request.node is not None, max(request.priority, OPPORTUNISTIC)
    return Gang(
        id=request.gang,
        virtual_cluster=request.virtual_cluster,
        user=request.user,
        priority=OPPORTUNISTIC if is_preflight else min(priority, HIGHEST_PRIORITY),
        roles=roles,
        job=request.job,
        submitted_at=request.submitted_at.timestamp(),
        group=request.group,
        is_lazy=request.lazy_preemption,
        allowed_nodes=None if request.node is None else frozenset((request.node,)),
        expected_s=expected_of(request, learnt_s),
        limit_s=_seconds(request.limit_s),
        min_run_s=_seconds(request.min_run_s),
        checkpoint_s=_seconds(request.checkpoint_s),
        is_borrowing=request.borrow,
        follows=request.follows,
        is_preflight=is_preflight,
    )


def saved_at(request: GangRequest, at: float) -> float | None:
    """The time up to which its work is saved, by its newest message; never in the future."""
    saved = request.checkpointed_at
    return None if saved is None else min(saved.timestamp(), at)


def _seconds(number: int | None) -> float | None:
    return None if number is None else float(number)


def placement_of(gang: Asked, place: PodPlace, report: NodeReport) -> Placement:
    """A pod of the gang at its place, on the node that reports so."""
    ask = gang.asks[place.pod]
    return Placement(
        place.pod,
        gang.name,
        place.node,
        report.journal,
        report.address,
        report.log_url,
        place.gpus,
        labelled(ask, place.ports),
        kind_of(ask),
        place.charged,
        report.secrets_key if gang.request.needs_keys else None,
    )


def labelled(ask: PodAsk, ports: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Ports by the labels that the pod has for them."""
    numbers = iter(ports)
    wanted = ((label, count) for label, count in ask.ports.items() if count > 0)
    return {label: tuple(next(numbers) for _ in range(count)) for label, count in wanted}
