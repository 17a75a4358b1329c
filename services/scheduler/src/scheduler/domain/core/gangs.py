"""A gang as the state knows it: its pods by what they want, and whose cells they are charged to."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Role
from scheduler.domain.core.node_models import Model, Want
from scheduler.domain.core.nodes import Wants, Workload
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.state import State, joined


def workload_of(
    state: State,
    gang: Gang,
    roles: Iterable[Role],
    *,
    name: str = "",
    parent: Workload | None = None,
) -> Workload:
    """The workload of a gang's pods. Kinds with the most leaves come first, then those with the
    most CPU and memory. ``parent``: it grows by them.
    """
    is_opportunistic = gang.priority == OPPORTUNISTIC
    pods: dict[Kind, list[str]] = {}
    for role in roles:
        pods.setdefault(role.kind, []).extend(role.pods)
    wants = _in_order(
        state,
        (
            (state.want(kind, is_charged=not is_opportunistic), tuple(names))
            for kind, names in pods.items()
        ),
    )
    owner = None if is_opportunistic else owner_of(gang.virtual_cluster)
    return Workload(name or gang.id, gang, wants, owner, gang.priority, parent)


def roles_of(workload: Workload) -> list[Role]:
    """What a workload wants, without the names of its gang's roles."""
    return [Role(want.kind, pods) for want, pods in workload.wants]


def growth_of(state: State, parent: Workload, pods: Mapping[str, Kind]) -> Workload:
    """What a gang wants beside its pods, all of it or none: charged as the gang is."""
    name = f"{parent.name}\ngrowth"
    workload = workload_of(state, parent.gang, _roles_of(pods), name=name, parent=parent)
    state.ask_anew(workload)
    return workload


def surplus_of(state: State, parent: Workload, pod: str, kind: Kind) -> Workload:
    """A pod that its gang can do without: all others of its virtual cluster come before it."""
    name = f"{parent.name}\n{pod}"
    workload = workload_of(state, parent.gang, _roles_of({pod: kind}), name=name, parent=parent)
    workload.is_surplus = True
    state.ask_anew(workload)
    return workload


def parted(roles: Iterable[Role]) -> tuple[list[Role], dict[str, Kind]]:
    """Roles with the pods that a gang can't start without, and the other pods."""
    needed, spare = list[Role](), dict[str, Kind]()
    for role in roles:
        if role.least is not None:
            spare |= dict.fromkeys(role.pods[role.least :], role.kind)
            role = replace(role, pods=role.pods[: role.least], least=None)
        if role.pods:
            needed.append(role)
    return needed, spare


def pods_of(roles: Iterable[Role]) -> dict[str, Kind]:
    """Pods, and what each wants."""
    return {pod: role.kind for role in roles for pod in role.pods}


def _roles_of(pods: Mapping[str, Kind]) -> list[Role]:
    return [Role(kind, (pod,)) for pod, kind in pods.items()]


def wants_with(state: State, workload: Workload, pods: Mapping[str, Kind]) -> Wants:
    """What a workload wants, and these pods."""
    kinds: dict[Want, list[str]] = {}
    for pod, kind in pods.items():
        want = state.want(kind, is_charged=not workload.is_opportunistic)
        kinds.setdefault(want, []).append(pod)
    more = tuple((want, tuple(names)) for want, names in kinds.items())
    return _in_order(state, joined(workload.wants, more))


def _in_order(state: State, wants: Iterable[tuple[Want, tuple[str, ...]]]) -> Wants:
    some = list(wants)
    if len(some) > 1:
        some.sort(key=lambda each: _size(each[0], state.models), reverse=True)
    return tuple(some)


def _size(want: Want, models: tuple[Model, ...]) -> tuple[int, int, int]:
    return want.least(models), want.kind.cpu, want.kind.memory_mb
