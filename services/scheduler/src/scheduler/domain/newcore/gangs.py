"""A gang as the state knows it: its pods by what they want, and whose cells they are charged to."""

from collections.abc import Iterable

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Role
from scheduler.domain.core.owning import owner_of
from scheduler.domain.newcore.models import Model, Want
from scheduler.domain.newcore.nodes import Workload
from scheduler.domain.newcore.state import State


def workload_of(
    state: State,
    gang: Gang,
    roles: Iterable[Role],
    *,
    name: str = "",
    parent: Workload | None = None,
) -> Workload:
    """The workload of a gang's pods. Kinds with the most leaves come first, then those with the
    most CPU and memory.
    """
    is_opportunistic = gang.priority == OPPORTUNISTIC
    pods: dict[Kind, list[str]] = {}
    for role in roles:
        pods.setdefault(role.kind, []).extend(role.pods)
    wants = [
        (state.want(kind, is_charged=not is_opportunistic), tuple(names))
        for kind, names in pods.items()
    ]
    if len(wants) > 1:
        wants.sort(key=lambda each: _size(each[0], state.models), reverse=True)
    owner = None if is_opportunistic else owner_of(gang.virtual_cluster)
    return Workload(name or gang.id, gang, tuple(wants), owner, gang.priority, parent)


def _size(want: Want, models: list[Model]) -> tuple[int, int, int]:
    return want.least(models), want.kind.cpu, want.kind.memory_mb
