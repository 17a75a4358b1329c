"""The Launcher's words about gangs as the core takes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.contracts.gangs import GangRequest, PodAsk, Preemption
from muster.contracts.model import Reason

from scheduler.domain.core.model import HIGHEST_PRIORITY, OPPORTUNISTIC, Gang, Kind, Role


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A gang runs without its cells, since ``at`` seconds. ``for_gang`` None: its quota went by a
    change of the configuration.
    """

    for_gang: str | None
    at: float


@dataclass(slots=True)
class Asked:
    """A gang that is not over, as the Launcher wants it and as it was told.

    ``said``: the reason that its last word gave, at ``said_at``. ``preemption``: it was told to
    leave. ``downgrade``: since when and for whom it has no cells.
    """

    request: GangRequest
    asks: dict[str, PodAsk] = field(default_factory=dict)
    said: Reason | None = None
    said_at: float = 0.0
    is_refused: bool = False
    preemption: Preemption | None = None
    downgrade: Downgrade | None = None

    @property
    def name(self) -> str:
        """Its id."""
        return self.request.gang


def kind_of(ask: PodAsk) -> Kind:
    """What a pod wants."""
    return Kind(
        gpus=ask.gpus,
        gpu_types=ask.gpu_types,
        pin=ask.pin,
        cpu=ask.cpu,
        memory_mb=ask.memory_mb,
        ports=sum(count for count in ask.ports.values() if count > 0),
        resources=tuple(sorted((name, n) for name, n in ask.resources.items() if n > 0)),
    )


def roles_of(pods: Iterable[tuple[str, Kind]]) -> tuple[Role, ...]:
    """Pods that want the same, together, in the order of the first of each."""
    kinds: dict[Kind, list[str]] = {}
    for pod, kind in pods:
        kinds.setdefault(kind, []).append(pod)
    return tuple(Role(kind, tuple(names)) for kind, names in kinds.items())


def gang_of(request: GangRequest, roles: tuple[Role, ...]) -> Gang:
    """The gang with these of its pods."""
    return Gang(
        id=request.gang,
        virtual_cluster=request.virtual_cluster,
        user=request.user,
        priority=min(max(request.priority, OPPORTUNISTIC), HIGHEST_PRIORITY),
        roles=roles,
        job=request.job,
        submitted_at=request.submitted_at.timestamp(),
        group=request.group,
        is_lazy=request.lazy_preemption,
    )


def labelled(ask: PodAsk, ports: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Ports by the labels that the pod has for them."""
    numbers = iter(ports)
    wanted = ((label, count) for label, count in ask.ports.items() if count > 0)
    return {label: tuple(next(numbers) for _ in range(count)) for label, count in wanted}
