"""The hardware as it is now: usable leaves, bound cells, and the regions that index them.

Everything that changes who may use which leaf goes through here. The index follows when somebody
looks: what changes several times before then, or back again, is brought into it once.
"""

from collections.abc import Sequence
from itertools import islice

from scheduler.domain.core.amounts import Amounts
from scheduler.domain.core.binding import Binding, Cells, cell_key
from scheduler.domain.core.demands import Demands
from scheduler.domain.core.forest import Forest, Rack, Slot
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.log import Log
from scheduler.domain.core.machines import Machine, SlotState, make_machines
from scheduler.domain.core.model import Kind
from scheduler.domain.core.owning import Owning, pin_owner
from scheduler.domain.core.regions import Region
from scheduler.domain.core.tags import Tag, TagKey, Tags


class Hardware:
    """One forest with all that is bound and used in it.

    ``regions[owner][GPU type]``: free leaves of bound cells; ``empty[type]``: of no bound cell.
    ``unbound[owner]``: quota path → cells still to bind. ``spaces``: of each node's chain the
    leaves in no bound cell, by node. ``unwell``: nodes on which not all is usable, by number.
    ``_behind``: nodes that have changed since somebody looked into the index, by number.
    ``searches_left``: gangs for which many nodes may still be searched in this cycle. ``steps``: so
    many places and cells were tried so far.
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
        self.regions: dict[str, dict[str, Region]] = {}
        self._places = forest.places()
        self.spaces = [self.cells[state.slot.chain.name].space for state in self.states]
        machines = list(self.machines.values())
        self.amounts: Amounts | None = None
        self._bits: dict[str, list[int] | None] = dict.fromkeys(forest.racks)
        if any(machine.sort.names for machine in machines):
            self.amounts = Amounts(machines, len(self.states))
            self._bits = {leaf: _bits(racks) for leaf, racks in forest.racks.items()}
        self.empty = {leaf: self._region(leaf) for leaf in forest.racks}
        self._physical: dict[str, Region] | None = None
        self.bindings: dict[tuple[str, int, int, int], Binding] = {}
        self.without_gpus = [m for m in self.machines.values() if not m.slots]
        self.usable_version = self.unbound_version = 0
        self.free_version = self.taken_version = 0
        self.unwell: dict[int, Machine] = {}
        self._log = Log()
        self.searches_left = self.steps = 0
        samples = {state.sort: state for state in reversed(self.states)}
        self._samples = [samples[sort] for sort in sorted(samples)]
        self.demands = Demands(self.sorts, self.machines.values(), self._samples)
        tags: dict[TagKey, Tag] = {}
        self._tags = [Tags(state.slot.shape, state.sort, tags) for state in self._samples]
        for owner, quotas in self.owning.quotas.items():
            self.unbound[owner] = {quota.path: quota.count for quota in quotas}
            for quota in quotas:
                self.cells[quota.chain.name].owed[quota.level] += quota.count
                leaf = quota.chain.leaf
                if leaf not in self.regions.setdefault(owner, {}):
                    self.regions[owner][leaf] = self._region(leaf)
        for pin, (place, part) in forest.pins.items():
            cell = place.cell if isinstance(place, Slot) else place
            self.bind(Binding(pin_owner(pin), None, cell, part))
        self._behind.update(enumerate(self.states))

    def _region(self, leaf: str) -> Region:
        return Region(self.forest.racks[leaf], self._places, self.catch_up, self._bits[leaf])

    def is_greed_exact(self, owner: str | None) -> bool:
        """Where an owner's cells are plain and nothing but GPUs is limited, equal pods that don't
        fit one after another don't fit at all.
        """
        return not self.demands.is_limited and self.owning.is_plain(owner)

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
        if machine.free and self.amounts is not None:
            self.amounts.changed(machine)
        for state in machine.slots:
            full = state.slot.shape.full if machine.is_open else 0
            usable = full & ~state.sick & ~state.blocked
            if usable != state.usable or machine.free:
                state.usable = usable
                self.refresh(state)
        is_well = machine.is_open and all(s.usable == s.slot.shape.full for s in machine.slots)
        if is_well:
            self.unwell.pop(machine.number, None)
        else:
            self.unwell[machine.number] = machine

    def catch_up(self, most: int | None = None) -> bool:
        """Bring so many nodes' leaves into the index; None: all. Whether it is behind no longer."""
        behind = self._behind
        if most is not None and len(behind) > most:
            for number in list(islice(behind, most)):
                self._index(behind.pop(number))
            return False
        while behind:
            self._index(behind.popitem()[1])
        return True

    def refresh(self, state: SlotState) -> None:
        """The node's leaves have changed, or what else is known of them."""
        self._behind[state.slot.number] = state

    def changed_since(self, read: int) -> tuple[int, list[int] | None]:
        """Up to where changes are read now, and which nodes have changed (`Log`)."""
        self.catch_up()
        return self._log.since(read)

    def having(self, kind: Kind) -> int | None:
        """Nodes that have what a pod takes beside GPUs, as a bit set (`Amounts`); None: any."""
        if self.amounts is None:
            return None
        self.catch_up()
        return self.amounts.having(kind)

    def _index(self, state: SlotState) -> None:
        """Put what is free on the node's leaves into the index."""
        slot, tags, machine = state.slot, self._tags[state.sort], state.machine
        number, kind = slot.number, state.gpu_type
        if machine.free and self.amounts is not None:
            self.amounts.changed(machine)
        known = tags.plain
        free = state.usable & ~(state.held | state.reserved)
        if self._physical is not None:
            others = tags.shared if state.charged else known
            self._physical[kind].put(number, others.get(free) or tags.new(others, free))
        own = free & ~state.charged
        for owner, mask in state.bound.items():
            mine = mask & own
            self.regions[owner][kind].put(number, known.get(mine) or tags.new(known, mine))
        space = self.spaces[number][number]
        if space:
            space &= free
            self.empty[kind].put(number, known.get(space) or tags.new(known, space))
        else:
            self.empty[kind].drop(number)
        if self._log.is_read:
            self._log.add(number)

    @property
    def physical(self) -> dict[str, Region]:
        """By GPU type, what nobody uses. It is made when the first guest looks for a place."""
        if self._physical is None:
            self._physical = {leaf: self._region(leaf) for leaf in self.forest.racks}
            self._behind.update(enumerate(self.states))
        return self._physical

    def refresh_all(self, machine: Machine, state: SlotState | None) -> None:
        """The same where something that all of a node's GPUs share has changed too."""
        if machine.free and (state is None or len(machine.slots) > 1):
            if self.amounts is not None:
                self.amounts.changed(machine)
            for each in machine.slots:
                self.refresh(each)
        elif state is not None:
            self.refresh(state)

    def versions(self) -> tuple[int, int, int]:
        """How often a cell was unbound, something became free, or was taken."""
        return self.unbound_version, self.free_version, self.taken_version

    def unchanged(self, versions: tuple[int, int, int]) -> None:
        """All that was done since was undone."""
        self.unbound_version, self.free_version, self.taken_version = versions

    # Pods.

    def enter(self, pod: Pod, *, is_charged: bool, is_reserved: bool) -> None:
        """A pod takes its place, or has it reserved."""
        machine, state = pod.machine, pod.state
        self.taken_version += 1
        machine.charge(pod.take, 1)
        if pod.ports:
            machine.hold_ports(pod.ports, 1)
        machine.pods[pod.gang] = machine.pods.get(pod.gang, 0) + 1
        for binding in pod.bindings:
            binding.users[pod.gang] = binding.users.get(pod.gang, 0) + 1
        if state is not None:
            if is_charged and pod.leaves:
                state.charged |= pod.leaves
                state.chargers[pod.gang] = state.chargers.get(pod.gang, 0) | pod.leaves
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
        machine, state = pod.machine, pod.state
        machine.charge(pod.take, -1)
        if pod.ports:
            machine.hold_ports(pod.ports, -1)
        left = machine.pods[pod.gang] - 1
        if left:
            machine.pods[pod.gang] = left
        else:
            del machine.pods[pod.gang]
        self.free_version += 1
        if state is not None:
            if is_reserved:
                state.reserved &= ~pod.gpus
            else:
                state.held &= ~pod.gpus
                _subtract(state.holders, pod.gang, pod.gpus)
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
                assert binding.quota is not None
                self.unbound[binding.owner][binding.quota.path] -= 1
                self.cells[binding.cell.chain.name].owed[binding.quota.level] -= 1
                self.bind(binding)
            binding.users[pod.gang] = binding.users.get(pod.gang, 0) + 1
        state = pod.state
        if state is not None:
            if pod.leaves:
                state.charged |= pod.leaves
                state.chargers[pod.gang] = state.chargers.get(pod.gang, 0) | pod.leaves
            self.refresh(state)

    def lift(self, pod: Pod, *, is_reserved: bool) -> None:
        """What-if: the pod uses nothing, and nothing is reserved for it."""
        self._lift(pod, -1)
        state = pod.state
        if state is not None:
            if is_reserved:
                state.reserved &= ~pod.gpus
            else:
                state.held &= ~pod.gpus
                state.lifted |= pod.gpus
        self.refresh_all(pod.machine, state)

    def lower(self, pod: Pod, *, is_reserved: bool) -> None:
        """The end of the what-if."""
        self._lift(pod, 1)
        state = pod.state
        if state is not None:
            if is_reserved:
                state.reserved |= pod.gpus
            else:
                state.held |= pod.gpus
                state.lifted &= ~pod.gpus
        self.refresh_all(pod.machine, state)

    @staticmethod
    def _lift(pod: Pod, times: int) -> None:
        machine = pod.machine
        machine.charge(pod.take, times)
        if pod.ports and machine.sort.limits.ports is not None:
            machine.hold_ports(pod.ports, times)

    # Cells.

    def bind(self, binding: Binding) -> Binding:
        """The cell is its owner's from now on; it was asked whether that may be."""
        cell, part = binding.cell, binding.part
        self.cells[cell.chain.name].bind(cell, part)
        self.bindings[cell_key(cell, part)] = binding
        regions = self.regions.setdefault(binding.owner, {})
        if cell.chain.leaf not in regions:
            regions[cell.chain.leaf] = self._region(cell.chain.leaf)
        for slot, mask in binding.masks():
            state = self.states[slot.number]
            state.bound[binding.owner] = state.bound.get(binding.owner, 0) | mask
            state.bindings.setdefault(binding.owner, []).append((mask, binding))
            self.refresh(state)
        return binding

    def unbind(self, binding: Binding) -> None:
        """Nobody uses the cell any more: it is free."""
        cell, part, owner = binding.cell, binding.part, binding.owner
        assert binding.quota is not None
        self.unbound[owner][binding.quota.path] += 1
        cells = self.cells[cell.chain.name]
        cells.owed[cell.level if part is None else part.level] += 1
        cells.unbind(cell, part)
        del self.bindings[cell_key(cell, part)]
        self.unbound_version += 1
        region = self.regions[owner][cell.chain.leaf]
        for slot, mask in binding.masks():
            state = self.states[slot.number]
            state.bound[owner] &= ~mask
            state.bindings[owner].remove((mask, binding))
            if not state.bound[owner]:
                del state.bound[owner], state.bindings[owner]
                region.drop(slot.number)
            self.refresh(state)


def _bits(racks: Sequence[Rack]) -> list[int]:
    """Of each rack its nodes' numbers as a bit set."""
    return [sum(1 << slot.number for slot in rack.slots) for rack in racks]


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
