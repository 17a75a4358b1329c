"""Two sides and a listener, over a bus that loses, doubles and reorders: silent and equal."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster.exchange import (
    REPEAT_LONGEST,
    Exchange,
    answered,
    keep_back,
    next_revision,
    receive,
    receive_acknowledgement,
    republish,
    resync,
    skip,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Message:
    sender: str
    revision: int
    seen: int
    value: int


@dataclass(frozen=True)
class Ack:
    sender: str
    revision: int
    sender_revision: int
    is_rejected: bool


@dataclass
class Side:
    """A side as a service would be: its row, its state, and what it knows of the other."""

    name: str
    row: Exchange = field(default_factory=Exchange)
    mine: int = 0
    theirs: int = 0
    unreadable: set[int] = field(default_factory=set)

    def publish(self, value: int, now: datetime) -> Message:
        self.mine = value
        self.row = next_revision(self.row, now)
        return self.message()

    def message(self) -> Message:
        return Message(self.name, self.row.revision, self.row.named, self.mine)

    def receive(self, record: Message | Ack, now: datetime) -> list[Message]:
        if isinstance(record, Ack):
            receipt = receive_acknowledgement(
                self.row,
                revision=record.revision,
                sender_revision=record.sender_revision,
                is_rejected=record.is_rejected,
                now=now,
            )
        else:
            receipt = receive(self.row, revision=record.revision, seen=record.seen, now=now)
        self.row = receipt.exchange
        if isinstance(record, Message) and receipt.is_new:
            if record.value in self.unreadable:
                self.row = skip(self.row, revision=record.revision, now=now)
            else:
                self.theirs = record.value
        return [self.publish(self.mine, now)] if receipt.must_publish else []

    def due(self, now: datetime, jitter: float) -> list[Message | Ack]:
        out: list[Message | Ack] = []
        if self.row.repeat_at is not None and self.row.repeat_at <= now:
            out.append(self.message())
            self.row = republish(self.row, now, jitter)
        if self.row.answer_at is not None and self.row.answer_at <= now:
            out.append(Ack(self.name, self.row.seen, self.row.revision, self.row.skipped > 0))
            self.row = answered(self.row)
        return out

    def snapshot(self) -> tuple[Exchange, int, int]:
        return self.row, self.mine, self.theirs

    def restore(self, snapshot: tuple[Exchange, int, int]) -> None:
        self.row, self.mine, self.theirs = snapshot


@dataclass
class World:
    """Both sides, the bus between them and a listener; `loss` is the share of records that
    vanish.
    """

    seed: int
    loss: float
    now: datetime = START

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.sides = {"a": Side("a"), "b": Side("b")}
        self.bus: list[Message | Ack] = []
        self.listener: dict[str, tuple[int, int]] = {"a": (0, 0), "b": (0, 0)}
        self.values = 0

    def put(self, records: list[Message | Ack] | list[Message]) -> None:
        for record in records:
            copies = 0 if self.rng.random() < self.loss else self.rng.choice((1, 1, 1, 2))
            self.bus.extend([record] * copies)

    def change(self, name: str) -> None:
        self.values += 1
        self.put([self.sides[name].publish(self.values, self.now)])

    def deliver(self) -> None:
        record = self.bus.pop(self.rng.randrange(len(self.bus)))
        if isinstance(record, Message) and record.revision > self.listener[record.sender][0]:
            self.listener[record.sender] = (record.revision, record.value)
        other = self.sides["b" if record.sender == "a" else "a"]
        self.put(other.receive(record, self.now))

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for side in self.sides.values():
            self.put(side.due(self.now, self.rng.random()))

    def settle(self) -> int:
        """Let time pass until both sides are silent; the number of steps that it took."""
        for step in range(20_000):
            if not self.bus and all(side.row.is_silent for side in self.sides.values()):
                return step
            if self.bus and self.rng.random() < 0.7:
                self.deliver()
            else:
                self.tick(self.rng.choice((0.2, 1.0, REPEAT_LONGEST.total_seconds() * 1.3)))
        pytest.fail(f"not silent after 20,000 steps, seed {self.seed}")

    def assert_equal(self) -> None:
        a, b = self.sides["a"], self.sides["b"]
        assert (a.theirs, b.theirs) == (b.mine, a.mine), f"seed {self.seed}"
        for side in (a, b):
            assert side.row.acknowledged == side.row.revision


def steps(world: World, count: int, *, resets: bool = False) -> None:
    snapshots = {name: side.snapshot() for name, side in world.sides.items()}
    for _ in range(count):
        name = world.rng.choice(("a", "b"))
        match world.rng.randrange(8 if resets else 6):
            case 0 | 1:
                world.change(name)
            case 2 | 3 | 4 if world.bus:
                world.deliver()
            case 6:
                snapshots[name] = world.sides[name].snapshot()
            case 7:
                side = world.sides[name]
                world.tick(1.0)  # a restore takes longer than a millisecond
                side.restore(snapshots[name])
                side.row = resync(side.row, world.now)
                world.put([side.message()])
            case _:
                world.tick(world.rng.choice((0.1, 0.4, 2.0, 30.0)))


worlds = st.builds(World, st.integers(0, 2**32), st.sampled_from((0.0, 0.2, 0.5)))


@given(worlds, st.integers(1, 120))
@settings(max_examples=300)
def test_two_sides_become_silent_and_equal(world: World, count: int) -> None:
    steps(world, count)
    world.settle()
    world.assert_equal()


@given(worlds, st.integers(1, 120))
@settings(max_examples=300)
def test_a_side_reset_to_an_older_state_and_resynced_becomes_equal_again(
    world: World, count: int
) -> None:
    steps(world, count, resets=True)
    for side in world.sides.values():
        if side.row.revision == 0:
            world.put([side.publish(0, world.now)])
    world.settle()
    world.assert_equal()


@given(worlds, st.integers(1, 60))
@settings(max_examples=150)
def test_a_listener_has_the_latest_message_once_nothing_is_lost(world: World, count: int) -> None:
    world.loss = 0.0
    steps(world, count)
    world.settle()
    for name, side in world.sides.items():
        assert world.listener[name] == (side.row.revision, side.mine)


@given(worlds, st.integers(1, 60))
@settings(max_examples=150)
def test_a_message_that_cannot_be_handled_is_skipped_rejected_and_redriven(
    world: World, count: int
) -> None:
    for side in world.sides.values():
        side.unreadable = {7, 11}
    steps(world, count)
    world.settle()
    for name, side in world.sides.items():
        other = world.sides["b" if name == "a" else "a"]
        assert (side.row.skipped > 0) == (other.row.rejected > 0)
        assert (side.row.skipped > 0) == (other.mine in {7, 11})
    for side in world.sides.values():
        side.unreadable = set()
        if side.row.rejected:
            world.put([side.publish(side.mine, world.now)])
    world.settle()
    world.assert_equal()


@given(st.lists(st.integers(1, 5), min_size=1), st.randoms(use_true_random=False))
def test_any_order_of_the_same_records_ends_the_same(
    revisions: list[int], shuffler: random.Random
) -> None:
    def read(records: list[int]) -> tuple[int, list[int]]:
        row, applied = Exchange(), [0]
        for revision in records:
            receipt = receive(row, revision=revision, seen=0, now=START)
            if receipt.is_new:
                applied.append(revision)
            row = receipt.exchange
        assert applied == sorted(applied), "a revision fell"
        return row.seen, applied[-1:]

    shuffled = list(revisions)
    shuffler.shuffle(shuffled)
    assert read(revisions) == read(shuffled)


def test_a_side_without_memory_publishes_above_its_earlier_revisions() -> None:
    world = World(seed=1, loss=0.0)
    for _ in range(5):
        world.change("a")
    world.settle()
    world.sides["a"].restore((Exchange(), 41, 0))
    world.put([world.sides["a"].publish(42, world.now)])
    world.settle()
    world.assert_equal()
    assert world.sides["b"].theirs == 42
    assert world.sides["a"].row.revision > 5


def test_at_rest_nothing_flows() -> None:
    world = World(seed=2, loss=0.0)
    world.change("a")
    world.change("b")
    world.settle()
    for _ in range(1000):
        world.tick(600)
    assert world.bus == []


@given(worlds, st.integers(1, 60))
@settings(max_examples=150)
def test_what_is_kept_back_goes_out_only_to_a_side_that_has_forgotten(
    world: World, count: int
) -> None:
    a, b = world.sides["a"], world.sides["b"]
    before = b.snapshot()
    steps(world, count)
    world.change("a")
    world.settle()
    published = a.mine
    world.values += 1
    a.mine, a.row = world.values, keep_back(a.row)
    world.change("b")
    world.settle()
    assert (a.theirs, b.theirs) == (b.mine, published)
    b.restore(before)
    b.row = resync(b.row, world.now)
    world.put([b.message()])
    world.settle()
    world.assert_equal()


def test_repeats_double_up_to_five_minutes() -> None:
    row = next_revision(Exchange(), START)
    now, waits = START, []
    for _ in range(12):
        assert row.repeat_at is not None
        waits.append((row.repeat_at - now).total_seconds())
        now = row.repeat_at
        row = republish(row, now, 0.0)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
