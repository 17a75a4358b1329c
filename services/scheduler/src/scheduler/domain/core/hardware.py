"""The hardware as it is now: usable leaves, bound cells, and the regions that index them.

Everything that changes who may use which leaf goes through here. The index follows when somebody
looks: what changes several times before then, or back again, is brought into it once.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from scheduler.domain.core.binding import Binding, Cells, cell_key
from scheduler.domain.core.changed_nodes import ChangedNodes
from scheduler.domain.core.demands import Demands
from scheduler.domain.core.forest import Forest, Rack, Slot
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.index import Index, make_index
from scheduler.domain.core.machines import Machine, SlotState, make_machines
from scheduler.domain.core.model import Kind
from scheduler.domain.core.owning import Owning, pin_owner
from scheduler.domain.core.regions import Region

COPIED = 16
"""To bring a node into the index takes so many times longer than to copy it from another."""


class Hardware:
    """One forest with all that is bound and used in it.

    ``index``: what is free, as it is looked at now (`ahead`); ``other``: the index that is not.
    ``unbound[owner]``: quota path → cells still to bind. ``spaces``: of each node's chain the
    leaves in no bound cell, by node. ``unwell``: nodes on which not all is usable, by number.
    ``leaving``: pods of gangs that were told to leave, ``left_by``: their nodes as a bit set.
    ``_behind``: nodes that have changed since somebody looked into the index, by number.
    ``searches_left``: gangs for which many nodes may still be searched in this cycle. ``steps``: so
    many places and cells were tried so far; ``limit``: from how many on nothing more is tried for
    the gang in question than must be.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self._behind: dict[int, SlotState] = {}
        self.gpu_types = forest.gpu_types
        self.cells = {name: Cells(chain) for name, chain in forest.chains.items()}
        self.machines, self.sorts = make_machines(forest)
        every = [state for machine in self.machines.values() for state in machine.slots]
        self.states: list[SlotState] = sorted(every, key=lambda state: state.slot.number)
        self.owning = Owning(forest)
        self.unbound: dict[str, dict[str, int]] = {}
        self.spaces = [self.cells[state.slot.chain.name].space for state in self.states]
        samples = {state.sort: state for state in reversed(self.states)}
        self._samples = [samples[sort] for sort in sorted(samples)]
        machines = list(self.machines.values())
        self.index = make_index(forest, machines, self._samples, self.spaces, self.catch_up)
        self.other: Index | None = None
        self.leaving: dict[Pod, None] = {}
        self.left_by = 0
        self.bindings: dict[tuple[str, int, int, int], Binding] = {}
        self.without_gpus = [m for m in self.machines.values() if not m.slots]
        self.usable_version = self.unbound_version = 0
        self.free_version = self.taken_version = 0
        self.unwell: dict[int, Machine] = {}
        self.changed_nodes = ChangedNodes()
        self.searches_left = self.steps = self.limit = 0
        pins = {p: [self.states[s.number] for s in forest.slots_of(p)] for p in forest.pins}
        self.demands = Demands(self.sorts, machines, self._samples, pins)
        for owner, quotas in self.owning.quotas.items():
            self.unbound[owner] = {quota.path: quota.count for quota in quotas}
            for quota in quotas:
                self.cells[quota.chain.name].owed[quota.level] += quota.count
                self.index.own(owner, quota.chain.leaf)
        for pin, (place, part) in forest.pins.items():
            cell = place.cell if isinstance(place, Slot) else place
            self.index.own(pin_owner(pin), cell.chain.leaf)
            self.bind(Binding(pin_owner(pin), None, cell, part))
        self._behind.update(enumerate(self.states))

    def is_greed_exact(self, owner: str | None) -> bool:
        """Where an owner's cells are plain and nothing but GPUs is limited, equal pods that don't
        fit one after another don't fit at all.
        """
        return not self.demands.is_limited and self.owning.is_plain(owner)

    @property
    def is_late(self) -> bool:
        """Nothing more is tried than must be."""
        return self.steps > self.limit

    def rack_of(self, state: SlotState) -> Rack:
        """The rack that a node is in."""
        return self.forest.rack_of[state.slot.number]

    def may_bind_more(self, owner: str, gpu_type: str) -> bool:
        """The owner has quota of the type that is not bound."""
        left = self.unbound.get(owner)
        if left is None:
            return False
        for quota in self.owning.quotas[owner]:
            if left[quota.path] and quota.chain.leaf == gpu_type:
                return True
        return False

    # Usable.

    def set_usable(self, machine: Machine) -> None:
        """The machine's health, cordon or a GPU's health has changed, or what is blocked of it."""
        self.usable_version += 1
        self.free_version += 1
        for state in machine.slots:
            full = state.slot.shape.full if machine.is_open else 0
            state.usable = full & ~state.sick & ~state.blocked
        self._changed(machine)
        is_well = machine.is_open and all(s.usable == s.slot.shape.full for s in machine.slots)
        if is_well:
            self.unwell.pop(machine.number, None)
        else:
            self.unwell[machine.number] = machine

    def catch_up(self, most: int | None = None) -> bool:
        """Bring so many nodes' leaves into the index; None: all. Whether it is behind no longer."""
        behind = self._behind
        if not behind:
            return True
        is_all = most is None or len(behind) <= most
        if is_all:
            self._behind = {}
        else:
            behind = {number: behind.pop(number) for number in list(islice(behind, most))}
        if self.changed_nodes.is_read:
            self.changed_nodes.add(behind)
        if self.other is not None:
            self.other.behind |= behind
        self.index.catch_up(behind)
        return is_all

    def refresh(self, state: SlotState) -> None:
        """The node's leaves have changed, or what else is known of them."""
        self._behind[state.slot.number] = state

    def changed_since(self, read: int) -> tuple[int, list[int] | None]:
        """Up to where changes are read now, and which nodes have changed (`ChangedNodes`)."""
        self.catch_up()
        return self.changed_nodes.since(read)

    def having(self, kind: Kind) -> int | None:
        """Nodes that have what a pod takes beside GPUs, as a bit set (`Amounts`); None: any."""
        amounts = self.index.amounts
        if amounts is None:
            return None
        self.catch_up()
        return amounts.having(kind)

    @property
    def physical(self) -> dict[str, Region]:
        """By GPU type, what nobody uses. It is made when the first guest looks for a place."""
        found = self.index.physical
        if found is None:
            found = self.index.physical = self.index.blank()
            self._behind.update(enumerate(self.states))
        return found

    def refresh_all(self, machine: Machine, state: SlotState | None) -> None:
        """The same where something that all of a node's GPUs share has changed too."""
        if machine.free and (state is None or len(machine.slots) > 1):
            self._changed(machine)
        elif state is not None:
            self._behind[state.slot.number] = state

    def _changed(self, machine: Machine) -> None:
        """All of a machine may have."""
        for state in machine.slots:
            self.refresh(state)
        for index in (self.index, self.other):
            if index is not None and not machine.slots and index.amounts is not None:
                index.amounts.changed(machine)

    def versions(self) -> tuple[int, int, int]:
        """How often a cell was unbound, something became free, or was taken."""
        return self.unbound_version, self.free_version, self.taken_version

    def unchanged(self, versions: tuple[int, int, int]) -> None:
        """All that was done since was undone."""
        self.unbound_version, self.free_version, self.taken_version = versions

    # Pods.

    def enter(self, pod: Pod, *, is_charged: bool, is_reserved: bool) -> None:
        """A pod takes its place, or has it reserved."""
        machine, state, gang = pod.machine, pod.state, pod.gang
        self.taken_version += 1
        if machine.free:
            machine.charge(pod.take, 1)
        if pod.ports:
            machine.hold_ports(pod.ports, 1)
        machine.pods[gang] = machine.pods.get(gang, 0) + 1
        for binding in pod.bindings:
            binding.users[gang] = binding.users.get(gang, 0) + 1
        if state is not None:
            if is_charged and pod.leaves:
                state.charged |= pod.leaves
                state.chargers[gang] = state.chargers.get(gang, 0) | pod.leaves
            if is_reserved:
                state.reserved |= pod.gpus
            else:
                _hold(state, pod)
        self.refresh_all(machine, state)

    def reserve(self, pod: Pod) -> None:
        """What the pod would use is only reserved for it."""
        state = pod.state
        if state is not None:
            state.held &= ~pod.gpus
            _subtract(state.holders, pod.gang, pod.gpus)
            state.reserved |= pod.gpus
            self.refresh(state)

    def start(self, pod: Pod) -> None:
        """What was reserved is used now; other ports, where somebody has one of them still."""
        state, machine = pod.state, pod.machine
        if any(machine.ports[port] > 1 for port in pod.ports):
            machine.hold_ports(pod.ports, -1)
            pod.ports = machine.choose_ports(len(pod.ports))
            machine.hold_ports(pod.ports, 1)
        if state is not None:
            state.reserved &= ~pod.gpus
            _hold(state, pod)
            self.refresh(state)

    def leave(self, pod: Pod, *, is_charged: bool, is_reserved: bool) -> None:
        """A pod gives up its place, and the cells that nobody else uses are free."""
        machine, state, gang = pod.machine, pod.state, pod.gang
        if self.leaving and pod in self.leaving:
            self._vacate(pod, -1)
        if machine.free:
            machine.charge(pod.take, -1)
        if pod.ports:
            machine.hold_ports(pod.ports, -1)
        left = machine.pods[gang] - 1
        if left:
            machine.pods[gang] = left
        else:
            del machine.pods[gang]
        self.free_version += 1
        if state is not None:
            if is_reserved:
                state.reserved &= ~pod.gpus
            else:
                state.held &= ~pod.gpus
                _subtract(state.holders, gang, pod.gpus)
        if is_charged:
            self.discharge(pod)
        if not is_charged or state is None or len(machine.slots) > 1:
            self.refresh_all(machine, state)

    def discharge(self, pod: Pod) -> None:
        """The pod runs on, or not, without its cells."""
        state = pod.state
        if state is not None:
            state.charged &= ~pod.leaves
            _subtract(state.chargers, pod.gang, pod.leaves)
        for binding in pod.bindings:
            users = binding.users[pod.gang] - 1
            if users:
                binding.users[pod.gang] = users
            else:
                del binding.users[pod.gang]
                if not binding.users and binding.quota is not None:
                    self.unbind(binding)
        pod.bindings = ()
        if state is not None:
            self.refresh(state)

    def recharge(self, pod: Pod, bindings: tuple[Binding, ...]) -> None:
        """The pod has these cells again; they are bound again where they were not meanwhile."""
        pod.bindings = bindings
        for binding in bindings:
            if cell_key(binding.cell, binding.part) not in self.bindings:
                self.bind(binding)
            binding.users[pod.gang] = binding.users.get(pod.gang, 0) + 1
        state = pod.state
        if state is not None:
            if pod.leaves:
                state.charged |= pod.leaves
                state.chargers[pod.gang] = state.chargers.get(pod.gang, 0) | pod.leaves
            self.refresh(state)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """What-if: who leaves already has left. Nobody starts, leaves or is told to meanwhile."""
        if not self.leaving:
            yield
            return
        self._turn()
        try:
            yield
        finally:
            self._turn()

    def _turn(self) -> None:
        """The other index is looked at."""
        self.catch_up()
        other = self.other
        if other is None or COPIED * len(other.behind) > len(self.states):
            other = self.index.turned(pod.machine for pod in self.leaving)
        self.other, self.index = self.index, other
        behind, other.behind = other.behind, {}
        other.catch_up(behind)

    def used(self, state: SlotState) -> int:
        """Leaves that somebody uses or has reserved, as the hardware is looked at now."""
        return state.used(is_ahead=self.index.is_ahead)

    def left(self, machine: Machine) -> Sequence[int]:
        """Of each limited resource of a machine, as the hardware is looked at now."""
        return machine.later if self.index.is_ahead else machine.free

    def told_to_leave(self, pods: Iterable[Pod]) -> None:
        """Their gang was told to leave."""
        for pod in pods:
            self._vacate(pod, 1)
            self.refresh_all(pod.machine, pod.state)

    def _vacate(self, pod: Pod, times: int) -> None:
        """The pod is one that leaves (1), or not any more (-1)."""
        if times > 0:
            self.leaving[pod] = None
        else:
            del self.leaving[pod]
        pod.machine.vacate(pod.take, pod.ports, times)
        for each in pod.machine.slots:
            bit = 1 << each.slot.number
            self.left_by = (self.left_by | bit) if pod.machine.leavers else self.left_by & ~bit
        if (state := pod.state) is None:
            return
        if times > 0:
            state.held &= ~pod.gpus
            state.leaving |= pod.gpus
        else:
            state.leaving &= ~pod.gpus
            state.held |= pod.gpus

    # Cells.

    def bind(self, binding: Binding) -> Binding:
        """The cell is its owner's from now on; it was asked whether that may be."""
        cell, part, quota = binding.cell, binding.part, binding.quota
        cells = self.cells[cell.chain.name]
        if quota is not None:
            self.unbound[binding.owner][quota.path] -= 1
            cells.owed[quota.level] -= 1
        cells.bind(cell, part)
        self.bindings[cell_key(cell, part)] = binding
        for slot, mask in binding.masks():
            state = self.states[slot.number]
            state.bound[binding.owner] = state.bound.get(binding.owner, 0) | mask
            state.bindings.setdefault(binding.owner, []).append((mask, binding))
            self.refresh(state)
        return binding

    def unbind(self, binding: Binding) -> None:
        """Nobody uses the cell any more: it is free."""
        cell, part, owner, quota = binding.cell, binding.part, binding.owner, binding.quota
        assert quota is not None
        cells = self.cells[cell.chain.name]
        self.unbound[owner][quota.path] += 1
        cells.owed[quota.level] += 1
        cells.unbind(cell, part)
        del self.bindings[cell_key(cell, part)]
        self.unbound_version += 1
        for slot, mask in binding.masks():
            state = self.states[slot.number]
            state.bound[owner] &= ~mask
            state.bindings[owner].remove((mask, binding))
            if not state.bound[owner]:
                del state.bound[owner], state.bindings[owner]
                self._drop(owner, state)
            self.refresh(state)

    def _drop(self, owner: str, state: SlotState) -> None:
        """The owner has no cell on the node any more."""
        for index in (self.index, self.other):
            if index is not None:
                index.regions[owner][state.gpu_type].drop(state.slot.number)


def _hold(state: SlotState, pod: Pod) -> None:
    if pod.gpus:
        state.held |= pod.gpus
        state.holders[pod.gang] = state.holders.get(pod.gang, 0) | pod.gpus


def _subtract(masks: dict[str, int], gang: str, mask: int) -> None:
    if not mask:
        return
    left = masks[gang] & ~mask
    if left:
        masks[gang] = left
    else:
        del masks[gang]
