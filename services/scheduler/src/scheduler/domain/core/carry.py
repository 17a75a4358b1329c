"""The gangs of a core come to one of another configuration; what runs stays where it is."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from scheduler.domain.core.gangs import roles_of, workload_of
from scheduler.domain.core.lend import lender_of
from scheduler.domain.core.model import Decision, Gang, Kind, Restored
from scheduler.domain.core.nodes import Phase
from scheduler.domain.core.ordering import Order
from scheduler.domain.core.records import Growth, Record
from scheduler.domain.core.refuse import misnaming
from scheduler.domain.core.reserve import exported_reservation
from scheduler.domain.core.restore import exported, parts_of
from scheduler.domain.core.transitions import Transitions


def carry_over(
    before: Transitions, after: Transitions, order_of: Callable[[Gang], Order]
) -> Iterator[Decision]:
    """All gangs of ``before``, which is only read. Those on borrowed capacity come after those in
    their own cells, and pods that gangs can do without last.
    """
    surplus: list[tuple[Record, dict[str, Restored]]] = []
    for record in sorted(before.records.all.values(), key=_turn):
        if record.workload.phase is Phase.WAITING:
            gang = record.workload.gang
            workload = workload_of(after.state, gang, roles_of(record.workload))
            carried = Record(workload, order_of(gang), misnaming(after.state, workload))
            after.add(carried)
        else:
            own, growth, more = parts_of(exported(record))
            yield from after.restore_whole(own, growth, order_of(record.workload.gang))
            carried = after.records.all[record.id]
            carried.workload.gang = record.workload.gang  # its roles have names
            surplus.append((carried, more))
        _carry_facts(record, carried)
    for carried, more in surplus:
        after.restore_surplus(carried, more)
    for carried in after.records.all.values():
        _ask_on(before.records.all[carried.id], carried, after)
    for preemption in before.costs.hour.all:
        after.costs.hour.note(preemption)
    after.usage.take_over(before.usage)
    _carry_reservations(before, after)
    after.look_at_nominated()


def _turn(record: Record) -> tuple[bool, Order]:
    return lender_of(record.workload) is not None, record.order


def _carry_facts(record: Record, carried: Record) -> None:
    carried.reserved_since = record.reserved_since
    if carried.workload.phase is record.workload.phase:
        carried.published, carried.passed = record.published, record.passed


def _ask_on(record: Record, carried: Record, after: Transitions) -> None:
    """What a gang wants beside its pods, and has no place for, it wants on."""
    if record.growth is None:
        return
    asking, spare = record.growth.asking, dict(record.growth.spare)
    for pod, child in record.growth.surplus.items():
        if child.workload.phase is Phase.WAITING:
            spare[pod] = _kind_of(child)
    growth = carried.growth = carried.growth or Growth()
    growth.wanted, growth.spare = dict(record.growth.wanted), spare
    after.children.ask(carried)
    if asking is not None and growth.asking is not None:
        _carry_facts(asking, growth.asking)


def _kind_of(child: Record) -> Kind:
    ((want, _),) = child.workload.wants
    return want.kind


def _carry_reservations(before: Transitions, after: Transitions) -> None:
    """Those whose cells are still there."""
    for each in (*before.records.reservations(), *before.records.kept):
        if after.policy.is_keeping or each.is_kept:
            restored = replace(exported_reservation(each), patient_until=each.patient_until)
            after.restore_reservation(restored)
