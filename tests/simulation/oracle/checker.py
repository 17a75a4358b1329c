"""What is true of every state, whatever was decided: each sentence that is not is one finding."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from scheduler.domain.core.model import OPPORTUNISTIC, GangClass, Kind

from oracle.hardware import Hardware
from oracle.state import Record, State, kinds_of, spare
from oracle.views import demands


def findings(state: State) -> list[str]:
    """Everything that is wrong with a state."""
    found = [
        *_gpus_are_held_once(state),
        *_bound_cells_are_owned(state),
        *_charges(state),
    ]
    for record in state.records.values():
        found += [f"{record.gang.id}: {text}" for text in _record(state, record)]
    for machine in state.hardware.machines:
        found += [f"{machine}: {text}" for text in _machine(state, machine)]
    for (chain, cell_type), left in spare(state.hardware, state.bound()).items():
        if left < 0:
            found.append(f"safety: S of {cell_type} in {chain} is {left}")
    return found


def _gpus_are_held_once(state: State) -> Iterator[str]:
    running: dict[int, Record] = {}
    reserved: dict[int, Record] = {}
    for record in state.records.values():
        for leaf in state.leaves_of(record):
            side = reserved if record.is_reserved else running
            if leaf in side:
                yield f"{_name(state, leaf)} is {side[leaf].gang.id}'s and {record.gang.id}'s"
            side[leaf] = record
    for leaf, record in reserved.items():
        if leaf in running and not running[leaf].is_leaving:
            yield (
                f"{_name(state, leaf)} is reserved for {record.gang.id}, and"
                f" {running[leaf].gang.id} is not leaving it"
            )


def _name(state: State, leaf: int) -> str:
    cell = state.hardware.cells[leaf]
    return f"GPU {cell.gpu} of {cell.node}"


def _bound_cells_are_owned(state: State) -> Iterator[str]:
    hardware = state.hardware
    pinned = set(hardware.pins.values())
    uses = {
        (cell, record.gang.virtual_cluster, path)
        for record in state.records.values()
        for cell, path in record.cells
    }
    numbers = Counter(cell for cell, _, _ in uses)
    for cell, vc, path in uses:
        at = hardware.cells[cell]
        if numbers[cell] > 1:
            yield f"cell {at.address} is bound more than once"
        inside = set(hardware.below(cell)) - {cell}
        if inside & (numbers.keys() | pinned):
            yield f"cell {at.address} is bound, and something in it too"
        if cell in pinned:
            if hardware.pin_owner.get(at.pin or "") != vc:
                yield f"pinned cell {at.address} is not {vc}'s"
            continue
        if set(hardware.path_up(cell)) & pinned:
            yield f"cell {at.address} is in a pinned one"
        if not at.is_complete:
            yield f"cell {at.address} is bound and not complete"
        if path.split("/")[0] != at.chain or path.split("/")[-1] != at.type:
            yield f"cell {at.address} is no {path}"
    counts = Counter((vc, path) for cell, vc, path in uses if cell not in pinned)
    for (vc, path), count in counts.items():
        if count > hardware.quotas(vc)[path]:
            yield f"{vc} has bound {count} of {path} and owns {hardware.quotas(vc)[path]}"


def _record(state: State, record: Record) -> Iterator[str]:
    gang = record.gang
    kinds = kinds_of(gang.roles)
    if set(record.places) != set(kinds):
        yield f"has pods {sorted(record.places)}, wants {sorted(kinds)}"
    for pod, place in record.places.items():
        if pod not in kinds:
            continue
        if len(set(place.gpus)) != kinds[pod].gpus:
            yield f"pod {pod} has GPUs {place.gpus}, wants {kinds[pod].gpus}"
        yield from (f"pod {pod} {text}" for text in _pod(state, record, pod, kinds[pod]))
    ran = state.before_change.ran  # their GPUs may be called otherwise now
    for role in gang.roles:
        if any((gang.id, pod) in ran for pod in role.pods):
            continue
        types = {
            state.hardware.leaf_type(leaf)
            for pod in role.pods
            if pod in record.places
            for leaf in _pod_leaves(state, record, pod)
        }
        if len(types) > 1:
            yield f"one role has GPUs of types {sorted(types)}"
        if role.kind.gpu_types and not types <= set(role.kind.gpu_types):
            yield f"has GPUs of types {sorted(types)}, wants {role.kind.gpu_types}"
    yield from _class_of(state, record)


def _pod_leaves(state: State, record: Record, pod: str) -> list[int]:
    place, at = record.places[pod], state.hardware.leaf_at
    return [at[place.node, gpu] for gpu in place.gpus if (place.node, gpu) in at]


def _pod(state: State, record: Record, pod: str, kind: Kind) -> Iterator[str]:
    hardware = state.hardware
    leaves = _pod_leaves(state, record, pod)
    is_broken, place = (record.gang.id, pod) in state.before_change.broken, record.places[pod]
    if not hardware.has_gpus(place) and not (is_broken and not record.is_guaranteed):
        yield "has not all its GPUs in one node cell"
    elif not hardware.holds(kind, place) and not is_broken:  # it runs on in its cells
        yield "is on a machine that has too little for it"
    if not record.is_guaranteed:
        return
    held = {cell for cell, _ in record.cells}
    for leaf in leaves:
        above = list(hardware.path_up(leaf))
        if not held & set(above):
            yield f"has {_name(state, leaf)}, which is in no cell of its gang"
        pins = {hardware.cells[at].pin for at in above} - {None}
        if pins and kind.pin not in pins:
            yield f"is in pinned cell {pins} and did not name it"
        if kind.pin is not None and kind.pin not in pins:
            yield f"is not in the pinned cell {kind.pin} that it named"


def _class_of(state: State, record: Record) -> Iterator[str]:
    gang = record.gang
    if gang.priority == OPPORTUNISTIC and record.gang_class is not GangClass.OPPORTUNISTIC:
        yield f"has priority -1 and is {record.gang_class.value}"
    with_gpus = any(role.kind.gpus for role in gang.roles)
    if gang.priority >= 0 and record.gang_class is GangClass.OPPORTUNISTIC and with_gpus:
        yield "has GPUs and priority, and is opportunistic"
    if not record.is_guaranteed and record.cells:
        yield f"is {record.gang_class.value} and holds cells"
    if record.is_guaranteed:
        charged = set(state.charged_by(record))
        for cell, _ in record.cells:
            if not set(state.hardware.leaves(cell)) & charged:
                address = state.hardware.cells[cell].address
                yield f"holds cell {address} and has no pod there"


def _machine(state: State, machine: str) -> Iterator[str]:
    used: Counter[str] = Counter()
    ports: Counter[int] = Counter()
    limits, before = state.hardware.limits(machine), state.before_change
    for record in state.records.values():
        kinds = kinds_of(record.gang.roles)
        for pod, place in record.places.items():
            if place.node == machine and pod in kinds and not record.is_reserved:
                used.update(dict(demands(kinds[pod])))
                ports.update(place.ports)
                if limits.ports is not None and (record.gang.id, pod) not in before.ran:
                    text = f"{pod} of {record.gang.id} has ports {place.ports}"
                    if len(set(place.ports)) != kinds[pod].ports:
                        yield f"{text}, wants {kinds[pod].ports}"
                    if not set(place.ports) <= set(range(limits.ports[0], limits.ports[1] + 1)):
                        yield f"{text}, of {limits.ports}"
    if any(count > 1 for count in ports.values()):
        yield f"ports {ports} are not each one pod's"
    span = None if limits.ports is None else limits.ports[1] - limits.ports[0] + 1
    has = {"cpu": limits.cpu, "memory": limits.memory_mb, "ports": span}
    for name, count in used.items():
        limit = has.get(name)
        if name.startswith("resource ") and limits.resources is not None:
            limit = limits.resources.get(name.removeprefix("resource "), 0)
        if limit is not None and count > max(limit, before.used.get((machine, name), 0)):
            yield f"{count} of {name} is used of {limit}"


def _charges(state: State) -> Iterator[str]:
    """Each guaranteed gang that stays is charged what its pods cost, in its cells. Pods without
    GPUs may share what they are charged.
    """
    hardware = state.hardware
    charged: defaultdict[int, list[tuple[str, Kind | None]]] = defaultdict(list)
    for record in state.records.values():
        if not record.is_guaranteed or record.is_leaving:
            continue
        held = {leaf for cell, _ in record.cells for leaf in hardware.leaves(cell)}
        for leaf in state.charged_by(record):
            if leaf not in held:
                yield f"{record.gang.id} is charged {_name(state, leaf)}, in no cell of its"
        kinds = kinds_of(record.gang.roles)
        for pod, place in record.places.items():
            for gpu in (*place.gpus, *place.charged):
                if (leaf := hardware.leaf_at.get((place.node, gpu))) is not None:
                    charged[leaf].append((record.gang.id, kinds.get(pod)))
            if (record.gang.id, pod) in state.before_change.ran:
                continue  # a change of the nodes charges nobody more
            needed = hardware.leaves_needed(kinds[pod], place.node) if pod in kinds else None
            if needed != len({*place.gpus, *place.charged}):
                yield f"{record.gang.id}: pod {pod} costs {needed} and is charged {place}"
    for leaf, pods in charged.items():
        if len(pods) > 1 and not _may_share(hardware, leaf, [kind for _, kind in pods]):
            yield f"{_name(state, leaf)} is charged to {sorted(gang for gang, _ in pods)}"


def _may_share(hardware: Hardware, leaf: int, kinds: list[Kind | None]) -> bool:
    """These want no GPU and together no more than goes with a leaf."""
    machine = str(hardware.cells[leaf].node)
    wanted: Counter[str] = Counter()
    has: dict[str, int | None] = {}
    for kind in kinds:
        if kind is None or not kind.costs_nothing:
            return False
        names = ("cpu", "memory", "ports", *(name for name, _ in kind.resources))
        for name, (count, limit) in zip(names, hardware.wanted(kind, machine), strict=True):
            wanted[name] += count
            has[name] = limit
    gpus = hardware.gpus_on[machine]
    return all(limit is None or wanted[name] * gpus <= limit for name, limit in has.items())
