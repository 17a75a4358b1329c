"""A node is lost once and returns once, whatever the order of the messages."""

from datetime import UTC, datetime, timedelta

from alerting.domain.events import Alert, Event
from alerting.domain.nodes import NodeWatch, due_at, lost, removed, returned, time_passed
from alerting.domain.policy import Policy
from hypothesis import given
from hypothesis import strategies as st
from muster.contracts.nodes import NodeLost, NodeReturned

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()
Words = list[NodeLost | NodeReturned]


def at(minute: int) -> datetime:
    return NOW + timedelta(minutes=minute)


def a_loss(lease: int, minute: int) -> NodeLost:
    return NodeLost(node="n1", lease=lease, since=at(minute), silent_s=60, pods=("p1",))


def a_return(lease: int, minute: int) -> NodeReturned:
    return NodeReturned(node="n1", lease=lease, at=at(minute))


def after(messages: Words) -> tuple[NodeWatch, list[Event], list[Alert]]:
    watch: NodeWatch | None = None
    events: list[Event] = []
    alerts: list[Alert] = []
    for message in messages:
        now = at(60)
        if isinstance(message, NodeLost):
            outcome = lost(watch, message, now=now, policy=POLICY)
        else:
            outcome = returned(watch, message, now=now, policy=POLICY)
        watch = outcome.watch
        events += outcome.events
        alerts += outcome.alerts
    assert watch is not None
    return watch, events, alerts


def test_a_loss_is_one_event_and_is_resolved_once() -> None:
    messages: Words = [a_loss(1, 0)] * 3 + [a_return(1, 5)] * 2
    watch, events, alerts = after(messages)
    assert [event.name.value for event in events] == ["node-lost", "node-returned"]
    assert [alert.ends_at for alert in alerts] == [None, at(5)]
    assert alerts[0].fingerprint == alerts[1].fingerprint
    assert watch.loss is None


def test_a_late_repeat_of_an_ended_loss_does_not_fire() -> None:
    for returned_lease in (1, 2):  # whether a return takes the number of the loss or the next
        watch, events, _ = after([a_return(returned_lease, 5), a_loss(1, 0)])
        assert watch.loss is None
        assert not events


def test_a_late_return_does_not_hide_a_newer_one() -> None:
    watch, events, _ = after([a_return(2, 12), a_return(1, 5), a_loss(2, 9)])
    assert watch.loss is None
    assert not events


def test_the_next_loss_fires_again() -> None:
    for second in (a_loss(1, 9), a_loss(2, 9)):
        _, events, _ = after([a_loss(1, 0), a_return(1, 5), second])
        assert [e.name.value for e in events] == ["node-lost", "node-returned", "node-lost"]
        assert len({event.key for event in events}) == 3


def test_a_second_loss_before_the_first_return_leaves_nothing_firing() -> None:
    watch, events, alerts = after([a_loss(1, 0), a_loss(2, 9), a_return(1, 5), a_return(2, 12)])
    assert [(it.starts_at, it.ends_at) for it in alerts] == [
        (at(0), None),
        (at(0), at(9)),
        (at(9), None),
        (at(9), at(12)),
    ]
    assert [event.name.value for event in events] == ["node-lost", "node-returned"]
    assert watch.loss is None


@given(
    st.permutations([a_loss(1, 0), a_return(1, 5), a_loss(2, 9), a_return(2, 12), a_loss(3, 20)])
)
def test_any_order_ends_the_same(messages: Words) -> None:
    watch, _, alerts = after(messages)
    assert watch.loss is not None
    begun = {it.starts_at for it in alerts if it.ends_at is None}
    ended = {it.starts_at for it in alerts if it.ends_at is not None}
    assert begun - ended == {watch.loss.since}
    assert watch.loss.lease == 3


def test_a_lost_node_without_messages_is_forgotten() -> None:
    watch, _, _ = after([a_loss(1, 0)])
    due = due_at(watch, POLICY)
    assert due == at(60) + timedelta(seconds=POLICY.lost_forget_s)
    outcome = time_passed(watch, now=due, policy=POLICY)
    assert outcome.watch.loss is None
    assert outcome.alerts[0].ends_at == due
    assert [event.name.value for event in outcome.events] == ["node-removed"]
    assert time_passed(watch, now=at(61), policy=POLICY).watch == watch


def test_a_removed_node_is_one_event_and_late_repeats_of_its_loss_do_not_fire() -> None:
    watch, _, (raised,) = after([a_loss(1, 0)])
    outcome = removed(watch, now=at(61))
    assert [event.name.value for event in outcome.events] == ["node-removed"]
    (resolved,) = outcome.alerts
    assert (resolved.fingerprint, resolved.ends_at) == (raised.fingerprint, at(61))
    late = lost(outcome.watch, a_loss(1, 0), now=at(62), policy=POLICY)
    again = removed(late.watch, now=at(62))
    assert not late.events + late.alerts + again.events + again.alerts
    assert lost(again.watch, a_loss(2, 70), now=at(71), policy=POLICY).events
