"""Where a gang's pods go when it costs nobody anything: docs/scheduling.md, "Which place"."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from scheduler.domain.core.backtracking import SEARCH_NODES, SEARCH_STEPS, Search, Want
from scheduler.domain.core.capacity import choices, rooms
from scheduler.domain.core.costless import cheapest_machine
from scheduler.domain.core.forest import Rack
from scheduler.domain.core.ground import FEW_NODES, Ground
from scheduler.domain.core.groups import racks_near
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import Machine, SlotState
from scheduler.domain.core.model import Gang, Kind, Role
from scheduler.domain.core.packing import many
from scheduler.domain.core.placing import one

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

TYPE_CHOICES = 64
"""Choices of GPU types for the roles that are tried, at the most."""

ORDERS = 24
"""Orders of a gang's kinds that are tried, at the most."""

RACK_TRIES = 16
"""Racks that are tried for all kinds of a gang together, at the most."""

MANY_NODES = 1024
"""So many nodes at the most are searched in every way where all else has failed."""

PLACE_STEPS = 1_500
"""Places and cells that are tried for a gang on GPUs of one choice of types, of some 40 us each,
beside `POD_STEPS` a pod, and one for each of its leaves where its cells may be in nodes; then only
what is simplest is tried on, at the most so many again.
"""

PLACE_STEPS_ON_MANY = 500
"""The same on more than `FEW_NODES` nodes."""

POD_STEPS = 2

CHOICES_ALLOWED = 4
"""So many choices of types may use up their steps, and their looks of the search in every way; of
more choices all together have no more than these.
"""

NO_END = 1 << 60
"""More steps than are ever taken."""

Kinds = Sequence[tuple[Kind, Sequence[str]]]


class Seeker:
    """Finds places for the pods of one gang, and takes them as it goes.

    ``owner`` None: opportunistic. ``only``: these nodes. ``near``: racks to be tried first.
    ``is_bare``: nothing but GPUs counts. ``is_thorough``: every way is tried on many nodes too.
    ``within``: the rack to stay in. ``is_alone``: all pods are of one kind. ``soft``: the step of
    the hardware's from which on other ways aren't tried; ``hard``: from which on nothing is.
    ``is_cut``: not every way was tried. ``end``: the step from which on no other choice of types is
    tried. ``search_steps``: of one search in every way; ``looks_left``: nodes that may be looked at
    in all searches.
    """

    __slots__ = (
        "end",
        "gang",
        "hard",
        "hardware",
        "is_alone",
        "is_bare",
        "is_cut",
        "is_thorough",
        "looks_left",
        "near",
        "only",
        "owner",
        "pods",
        "search_steps",
        "soft",
        "within",
    )

    def __init__(
        self,
        hardware: Hardware,
        gang: Gang,
        owner: str | None,
        *,
        near: Sequence[Rack] = (),
        is_bare: bool = False,
    ) -> None:
        self.hardware = hardware
        self.gang = gang.id
        self.owner = owner
        self.only = gang.allowed_nodes
        self.near = near
        self.is_bare = is_bare
        self.is_thorough = False
        self.search_steps = SEARCH_STEPS
        self.looks_left = CHOICES_ALLOWED * SEARCH_STEPS * SEARCH_NODES
        self.within: Rack | None = None
        self.is_alone = self.is_cut = False
        self.soft = self.hard = self.end = NO_END
        self.pods: list[Pod] = []

    def place(self, roles: Sequence[Role]) -> bool:
        """Place all pods, or none. An exception places none."""
        before = len(self.pods)
        try:
            return self._place(roles)
        except BaseException:
            self.undo(before)
            raise

    def _place(self, roles: Sequence[Role]) -> bool:
        first = roles[0]
        kinds = ((first.kind, first.pods),) if len(roles) == 1 else self.kinds(roles)
        if len(kinds) > 1:
            return self._several(kinds)
        (kind, names), self.is_alone = kinds[0], True
        for number, gpu_type in enumerate(self.types(kind)):
            self._allow(number, kinds)
            if self._kind(kind, names, gpu_type):
                return True
            if self._is_searched(kind, gpu_type) and self._search(kinds, (gpu_type,)):
                return True
        return False

    def could_place(self, roles: Sequence[Role]) -> bool:
        """Whether there is a place for all pods, or not everything was tried."""
        found = self.place(roles)
        self.undo()
        return found or self.is_cut or (self._is_large and self.is_spent)

    @property
    def _is_large(self) -> bool:
        """There are so many nodes that not every way is tried."""
        return len(self.hardware.states) > FEW_NODES

    @property
    def is_spent(self) -> bool:
        """So much was tried that only what is simplest is tried on."""
        return self.hardware.steps > self.soft

    @property
    def is_over(self) -> bool:
        """So much was tried that nothing is tried any more."""
        return self.hardware.steps > self.hard

    def search_steps_on(self, nodes: int) -> int:
        """How many a search on so many nodes may have: fewer the more they are."""
        looks = min(self.looks_left, self.search_steps * SEARCH_NODES)
        return min(self.search_steps, looks // max(1, nodes))

    def _allow(self, choice: int, kinds: Kinds) -> None:
        """So many steps from now on, where those of all choices of types are not used up. What is
        promised at any size takes as many as it needs.
        """
        if self.is_alone and self.hardware.is_greed_exact(self.owner):
            return
        self.is_cut = self.is_cut or (self._is_large and self.is_spent)
        is_split, least = self.owner in self.hardware.owning.splitters, self.hardware.demands
        steps = PLACE_STEPS_ON_MANY if self._is_large else PLACE_STEPS
        for kind, names in kinds:
            steps += (POD_STEPS + is_split * least.least_leaves(kind)) * len(names)
        now = self.hardware.steps
        if choice == 0:
            self.end = now + CHOICES_ALLOWED * steps
        is_one = len(kinds) == 1 and len(kinds[0][1]) == 1
        self.soft = min(now + steps, max(now, self.end))
        self.hard = NO_END if is_one else self.soft + steps

    def kinds(self, roles: Iterable[Role]) -> Kinds:
        """Pods by what they want, in order; roles that may choose their GPU type apart."""
        found: dict[tuple[Kind, int], list[str]] = {}
        for number, role in enumerate(roles):
            key = (role.kind, -1 if len(self.types(role.kind)) == 1 else number)
            found.setdefault(key, []).extend(role.pods)
        return [(kind, names) for (kind, _), names in found.items()]

    def undo(self, to: int = 0) -> None:
        """Give back all but the first pods."""
        while len(self.pods) > to:
            pod = self.pods.pop()
            self.hardware.leave(pod, is_charged=self.owner is not None, is_reserved=False)

    def enter(self, pod: Pod) -> None:
        """Take a place."""
        self.hardware.enter(pod, is_charged=self.owner is not None, is_reserved=False)
        self.pods.append(pod)

    # Several kinds.

    def _several(self, kinds: Kinds) -> bool:
        for number, types in enumerate(self.choices(kinds)):
            if number == TYPE_CHOICES or self.hardware.steps > self.end:
                self.is_cut = True
                break
            self._allow(number, kinds)
            orders = list(self._orders(kinds))
            for rack in self._racks_for_all(kinds, types):
                self.within = rack
                found = self._in_order(kinds, types, orders[0])
                self.within = None
                if found:
                    return True
                if self.is_spent:
                    break
            for order in orders:
                if self._in_order(kinds, types, order):
                    return True
                if self.is_spent:
                    break
            if self._search(kinds, types):
                return True
        return False

    def choices(self, kinds: Kinds) -> Iterator[Sequence[str]]:
        """GPU types for each of the kinds that are worth trying, in order of preference."""
        return choices(self, kinds)

    def _in_order(self, kinds: Kinds, types: Sequence[str], order: Sequence[int]) -> bool:
        before, near = len(self.pods), self.near
        for index in order:
            if not self._kind(*kinds[index], types[index]):
                self.undo(before)
                self.near = near
                return False
            self.near = near or self._racks_of(self.pods)
        self.near = near
        return True

    def _racks_for_all(self, kinds: Kinds, types: Sequence[str]) -> Iterator[Rack]:
        """Racks that may hold the whole gang: near ones first, then those with the least left; of
        an opportunistic one as for its pods of one kind.
        """
        names = {t for (kind, _), t in zip(kinds, types, strict=True) if t}
        if len(names) != 1 or any(kind.pin is not None for kind, _ in kinds):
            return
        gpu_type = names.pop()
        grounds = [(self.ground(kind, gpu_type), len(pods)) for kind, pods in kinds]
        wanted = sum(ground.least * count for ground, count in grounds)
        near, first = {rack.number for rack in self._near_of(gpu_type)}, grounds[0][0]
        enough = sorted(
            (number not in near, worse, order, room, number)
            for worse, part in enumerate((*first.parts(), first))
            for number, (room, order) in rooms(part).items()
            if room >= wanted
        )
        for number in list(dict.fromkeys(number for *_, number in enough))[:RACK_TRIES]:
            yield self.hardware.forest.racks[gpu_type][number]

    def _near_of(self, gpu_type: str) -> Sequence[Rack]:
        """Near racks with such GPUs: racks of another type may have the same numbers."""
        return [rack for rack in self.near if rack.cell.chain.leaf == gpu_type]

    def _racks_of(self, pods: Iterable[Pod]) -> list[Rack]:
        racks = (self.hardware.rack_of(pod.state) for pod in pods if pod.state is not None)
        return list({id(rack): rack for rack in racks}.values())

    def types(self, kind: Kind) -> Sequence[str]:
        """GPU types that pods may have, in order of preference."""
        if kind.pin is not None:
            pinned = self.hardware.owning.pin_types.get(kind.pin)
            return ("",) if not kind.gpu_types or pinned in kind.gpu_types else ()
        return (kind.gpu_types or self.hardware.gpu_types) if kind.gpus else ("",)

    def types_taken(self) -> dict[str, str]:
        """By pod, the GPU types that were found."""
        return {pod.name: pod.state.gpu_type for pod in self.pods if pod.gpus and pod.state}

    def _orders(self, kinds: Kinds) -> Iterator[Sequence[int]]:
        def size(index: int) -> tuple[int, int, int, int]:
            kind = kinds[index][0]
            needs, _ = self.hardware.demands.wish(kind, is_guest=self.owner is None)
            leaves = min(needs, default=0)
            return (-max(leaves, kind.gpus), -kind.cpu, -kind.memory_mb, index)

        first = sorted(range(len(kinds)), key=size)
        yield first
        for shift in range(1, min(len(first), ORDERS)):
            yield first[shift:] + first[:shift]

    # One kind.

    def ground(self, kind: Kind, gpu_type: str) -> Ground:
        """Where pods of a kind may be."""
        return Ground(self, kind, gpu_type)

    def _kind(self, kind: Kind, names: Sequence[str], gpu_type: str) -> bool:
        """Place pods that want the same, or none of them."""
        if kind.gpus:
            return self._on_gpus(kind, names, gpu_type)
        before = len(self.pods)
        rest = self.for_nothing(kind, names)
        types = self.hardware.gpu_types if kind.pin is None else (gpu_type,)
        if not rest or (
            self.owner is not None and any(self._on_gpus(kind, rest, each) for each in types)
        ):
            return True
        self.undo(before)
        return False

    def _on_gpus(self, kind: Kind, names: Sequence[str], gpu_type: str) -> bool:
        before, near = len(self.pods), self.near
        ground = Ground(self, kind, gpu_type)
        self.near = self._near_of(ground.gpu_type) if near else near
        found = one(ground, names[0]) if len(names) == 1 else many(ground, names)
        self.near = near
        if not found:
            self.undo(before)
        return found

    def for_nothing(self, kind: Kind, names: Sequence[str]) -> Sequence[str]:
        """Pods that cost no GPU: nodes without, then those with the fewest free, the lowest; those
        that found no such place are left.

        A guaranteed one on a node with GPUs only where it asks for nothing that is limited there.
        """
        for number, name in enumerate(names):
            machine = cheapest_machine(self, kind)
            if machine is None:
                return names[number:]
            self.put_for_nothing(name, kind, machine)
        return ()

    def put_for_nothing(self, name: str, kind: Kind, machine: Machine) -> None:
        """Put a pod on a machine without any GPU."""
        take = machine.sort.take(kind)
        assert take is not None
        ports = machine.choose_ports(kind.ports, is_ahead=self.hardware.index.is_ahead)
        self.enter(Pod(name, self.gang, kind, machine, take, None, 0, 0, ports))

    def having(self, kind: Kind) -> int | None:
        """Nodes that have what a pod takes beside GPUs, as a bit set (`Amounts`); None: any."""
        return None if self.is_bare else self.hardware.having(kind)

    def may_be_on(self, machine: Machine) -> bool:
        """The gang may be on it, and new pods may."""
        return machine.is_open and (self.only is None or machine.name in self.only)

    def takes(self, machine: Machine, kind: Kind) -> bool:
        """It takes such a pod now."""
        if not self.may_be_on(machine):
            return False
        take = machine.sort.take(kind)
        if take is None or self.is_bare:
            return take is not None
        has = machine.has(take, is_ahead=self.hardware.index.is_ahead)
        return has and (not kind.ports or machine.has_ports(kind.ports))

    def may_use(self, state: SlotState) -> bool:
        """The gang may be on the node."""
        is_inside = self.within is None or self.hardware.rack_of(state) is self.within
        return is_inside and (self.only is None or state.machine.name in self.only)

    # Every way.

    def _is_searched(self, kind: Kind, gpu_type: str) -> bool:
        is_exact = self.hardware.is_greed_exact(self.owner)
        return not is_exact or self.ground(kind, gpu_type).is_searched

    def _search(self, kinds: Kinds, types: Sequence[str]) -> bool:
        """Try every way on few nodes: cells inside nodes, and several kinds, can need it."""
        most = MANY_NODES if self.is_thorough else FEW_NODES
        every = self.hardware.gpu_types if self.owner is not None else ()
        wants: list[Want] = []
        for (kind, names), gpu_type in zip(kinds, types, strict=True):
            some = every if kind.costs_nothing else (gpu_type,)
            grounds = [self.ground(kind, each) for each in some]
            if not all(ground.has_at_most(most) for ground in grounds):
                self.is_cut = True
                return False
            wants += [Want(name, kind, grounds) for name in names]
        before, search = self.hardware.steps, Search(self, wants)
        found = search.run()
        took = self.hardware.steps - before
        self.soft, self.hard, self.end = self.soft + took, self.hard + took, self.end + took
        self.is_cut = self.is_cut or search.is_cut
        return found

    def search_racks(self, ground: Ground, names: Sequence[str], racks: Iterable[Rack]) -> bool:
        """Try every way to place all pods of a gang in one of these racks."""
        if not self.is_alone:
            return False
        before, found = self.within, False
        wants = [Want(name, ground.kind, [ground]) for name in names]
        for rack in racks:
            self.within = rack
            found = Search(self, wants).run()
            if found:
                break
        self.within = before
        return found


def seeker_of(cluster: "Cluster", live: Live, *, is_guest: bool, is_bare: bool = False) -> Seeker:
    """Who looks for its places."""
    near = racks_near(cluster, live) if live.pods or live.gang.group is not None else ()
    owner = None if is_guest else live.owner
    return Seeker(cluster.hardware, live.gang, owner, near=near, is_bare=is_bare)
