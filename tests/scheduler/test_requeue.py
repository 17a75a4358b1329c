"""An attempt that the platform failed keeps the healthy part of its place for the job's next one,
from the Launcher's message to a restart.
"""

import json
import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from muster.contracts.gangs import GangEnd, GangRequest
from muster.contracts.node_orders import Order
from scheduler.domain.core.config import (
    REQUEUE_S,
    CellType,
    ClusterConfig,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.interface import Core, Drift
from scheduler.domain.core.model import Decision, Placed
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.snapshot import timed
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler_world import RULES, Store
from snapshots import take

Kit = Any
NODES = ("n0", "n1", "n2")
FILE = ClusterConfig(
    cell_types={"node": CellType("t", 2, is_node=True)},
    physical_cells=tuple(PhysicalCell("node", name) for name in NODES),
    virtual_clusters={"default": VirtualCluster((QuotaCells("node", 3),))},
    policy=Policy(order_by=("priority", "age")),
)


def drifts(core: Core) -> list[Drift]:
    """What the audit of a core finds."""
    steps = core.audit()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Drift] = end.value
            return found


class Story:
    """Three nodes with two GPUs each. ``j-0`` is on two of them, ``full`` is on the third."""

    def __init__(self, kit: Kit, file: ClusterConfig = FILE) -> None:
        self.kit, self.file, self.store = kit, file, Store()
        self.now = 0.0
        self.revision = 1
        self.bad: dict[str, tuple[int, ...]] = {}
        self.lost: set[str] = set()
        self.holding: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in NODES}
        self.state = State(RULES, file)
        self.report(self.state)
        self.state.given.is_recording = True
        self.ask("j-0", 2, job="j")
        self.cycle()
        self.ask("full", 1)
        self.cycle()

    def report(self, state: State) -> None:
        for name in NODES:
            if name not in self.lost:
                known = state.ledger.nodes.get(name)
                report = self.kit.report(
                    name,
                    gpus=2,
                    revision=self.revision,
                    bad=self.bad.get(name, ()),
                    lease=0 if known is None else known.lease,
                )
                state.report(report, self.now)
                state.ledger.receive(name, f"journal-of-{name}", self.now)

    def say(self, message: GangRequest) -> None:
        self.store.record(message)
        self.state.request(message, self.now, self.now)

    def message(self, name: str, count: int, age: float = 0.0, **more: Any) -> GangRequest:
        pods = self.kit.pods(name, count, gpus=2)
        message: GangRequest = self.kit.gang(name, *pods, age=age)
        return message.model_copy(update=more)

    def ask(self, name: str, count: int, **more: Any) -> None:
        self.say(self.message(name, count, **more))

    def end(
        self, name: str, end: GangEnd = GangEnd.SUCCEEDED, failed: Collection[str] = ()
    ) -> None:
        asked = self.state.gangs.get(name)
        request = self.message(name, 0) if asked is None else asked.request
        self.say(request.model_copy(update={"pods": (), "end": end, "failed": tuple(failed)}))

    def fail(self, failed: str = "j-0-w-1") -> None:
        """The node of a pod is lost, and the attempt with it."""
        node = self.state.ledger.pods[failed]
        self.lost.add(node)
        self.state.lose(node, self.now)
        self.end("j-0", GangEnd.REQUEUED, [failed])
        self.cycle()

    def cycle(self, after_s: float = 1.0) -> list[str]:
        """The gangs that start."""
        self.now += after_s
        self.revision += 1
        self.report(self.state)
        decisions: list[Decision] = self.kit.decide(self.state, self.now)
        self.store.write(self.state, decisions)
        assert drifts(self.state.core) == []
        return [each.gang for each in decisions if isinstance(each, Placed)]

    def restart(self) -> None:
        """The state as another process makes it of what is stored."""
        state, store, old = Stored(RULES, self.file), self.store, self.state
        for node in old.ledger.nodes.values():
            state.ledger.restore_node(
                node.name, lease=node.lease, is_lost=node.is_lost, size=node.size
            )
        state.restore_holds([hold for _, hold in sorted(store.holds.items())], self.now)
        self.report(state)
        state.change(state.file, self.now)
        state.keep_up(self.now)
        for name in sorted(store.gangs):
            state.restore_gang(store.gangs[name], self.now, self.now)
        state.restore_usage(store.usage)
        state.restore_reservations(store.reservations)
        state.keep_up(self.now)
        state.restored(self.now, self.now)
        self.state = state

    def kept(self) -> dict[str, list[str]]:
        """Nodes of kept cells by gang."""
        rows = self.state.core.rows.reservations()
        return {e.gang: [node for node, _ in e.cells] for e in rows if e.kept_of is not None}

    def nodes_of(self, name: str) -> list[str]:
        return sorted(place.node for place in self.state.core.exported(name).places)


@pytest.fixture
def story(kit: Kit) -> Story:
    found = Story(kit)
    assert found.nodes_of("j-0") == ["n0", "n1"]
    return found


def healthy_node(story: Story) -> str:
    """Where the pod that does not fail is."""
    return story.state.ledger.pods["j-0-w-0"]


def test_healthy_cells_are_kept_and_nobody_else_gets_them(story: Story) -> None:
    kept = healthy_node(story)
    story.fail()
    story.ask("w", 1)
    assert story.cycle() == []
    assert story.kept() == {"j-0": [kept]}


def test_the_next_attempt_gets_its_place_back_and_only_the_missing_node_is_new(
    story: Story,
) -> None:
    kept = healthy_node(story)
    story.fail()
    story.ask("w", 1, age=-5)
    story.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert story.cycle() == []
    assert story.kept() == {"j-1": [kept]}
    story.end("full")
    assert story.cycle() == ["j-1"]
    assert story.nodes_of("j-1") == sorted([kept, "n2"])
    assert story.kept() == {}


@pytest.mark.parametrize("end", [GangEnd.TAKEN, GangEnd.FAILED, GangEnd.STOPPED, GangEnd.UNKNOWN])
def test_other_ends_keep_nothing(story: Story, end: GangEnd) -> None:
    story.end("j-0", end)
    story.cycle()
    assert story.kept() == {}


def test_an_old_message_without_the_new_fields_is_read() -> None:
    text = GangRequest(
        gang="g",
        job="j",
        name="n",
        user="u",
        virtual_cluster="v",
        priority=0,
        submitted_at="2026-01-01T00:00:00Z",
    ).model_dump_json()
    data = {k: v for k, v in json.loads(text).items() if k not in ("failed", "follows")}
    message = GangRequest.model_validate(data)
    assert (message.failed, message.follows) == ((), None)


def test_an_end_that_an_older_reader_does_not_know_is_unknown() -> None:
    assert GangEnd("from-the-future") is GangEnd.UNKNOWN


def test_the_place_of_the_failed_pod_is_chosen_anew(story: Story) -> None:
    """No other is free: its own is the next attempt's rather than another gang's."""
    story.end("j-0", GangEnd.REQUEUED, ["j-0-w-1"])
    story.ask("w", 1)
    assert story.cycle() == []
    assert story.kept() == {"j-0": ["n0", "n1"]}


@pytest.fixture
def tight(kit: Kit) -> Story:
    """A node is idle, as the quota is used up by ``j-0``. So ``full`` waits."""
    cells = {"default": VirtualCluster((QuotaCells("node", 2),))}
    story = Story(kit, replace(FILE, virtual_clusters=cells))
    assert story.state.is_waiting("full")
    return story


def lose(story: Story, pod: str, *, is_seen: bool) -> None:
    """The pod's node is lost. ``is_seen``: a cycle runs before the Launcher ends the gang."""
    node = story.state.ledger.pods[pod]
    story.lost.add(node)
    story.state.lose(node, story.now)
    if is_seen:
        assert story.cycle() == []
    story.end("j-0", GangEnd.REQUEUED, [pod])


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_smaller_gang_does_not_get_the_quota_of_a_lost_node(
    tight: Story, is_seen: bool, is_restarted: bool
) -> None:
    lose(tight, "j-0-w-1", is_seen=is_seen)
    for _ in range(2):
        assert tight.cycle() == []
        assert tight.kept() == {"j-0": ["n0", "n2"]}
        if is_restarted:
            tight.restart()
            assert tight.kept() == {"j-0": ["n0", "n2"]}
    tight.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert tight.cycle() == ["j-1"]
    assert tight.nodes_of("j-1") == ["n0", "n2"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_gang_that_is_stopped_when_it_has_lost_a_node_gives_its_quota_free(
    tight: Story, is_restarted: bool
) -> None:
    node = tight.state.ledger.pods["j-0-w-1"]
    tight.lost.add(node)
    tight.state.lose(node, tight.now)
    assert tight.cycle() == []
    assert tight.kept() == {"j-0": ["n2"]}
    if is_restarted:
        tight.restart()
        assert tight.kept() == {"j-0": ["n2"]}
        assert tight.cycle() == []
    tight.end("j-0", GangEnd.STOPPED)
    assert tight.cycle() == ["full"]


@pytest.mark.parametrize("when", ["", "leaves", "unseen end", "ended"])
def test_a_drained_gang_keeps_its_turn(tight: Story, when: str) -> None:
    tight.state.order("n1", Order.DRAIN)
    assert tight.cycle() == []
    assert tight.kept() == {"j-0": ["n0", "n2"]}
    if when == "leaves":
        tight.restart()
    failed, message = ["j-0-w-0", "j-0-w-1"], tight.message("j-0", 0, end=GangEnd.REQUEUED)
    if when == "unseen end":
        tight.store.record(message.model_copy(update={"failed": tuple(failed)}))
        tight.restart()
    else:
        tight.end("j-0", GangEnd.REQUEUED, failed)
        assert tight.cycle() == []
    if when == "ended":
        tight.restart()
    assert tight.kept() == {"j-0": ["n0", "n2"]}
    tight.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert tight.cycle() == ["j-1"]
    assert tight.nodes_of("j-1") == ["n0", "n2"]


def test_a_drained_gang_that_ends_by_itself_keeps_nothing(tight: Story) -> None:
    tight.state.order("n1", Order.DRAIN)
    assert tight.cycle() == []
    tight.end("j-0", GangEnd.SUCCEEDED)
    assert tight.cycle() == ["full"]


def test_the_record_has_the_lost_pod(tight: Story) -> None:
    tight.state.given.take_noted()
    lose(tight, "j-0-w-1", is_seen=True)
    tight.cycle()
    noted = [json.loads(line) for each in tight.state.given.take_noted() for line in each.lines]
    lost, *_ = (each for each in noted if each["event"] == "pod-released")
    assert (lost["pod"], lost["lost"]) == ("j-0-w-1", True)


def test_a_gang_of_which_nothing_is_left_is_first_all_the_same(story: Story) -> None:
    story.ask("v", 1, age=-9)
    story.cycle()
    story.end("full", GangEnd.REQUEUED, ["full-w-0"])
    story.ask("full-1", 1, age=9, follows="full")
    assert story.cycle() == ["full-1"]
    assert story.kept() == {}


def test_a_job_that_its_user_stops_meanwhile_gives_its_place_free(story: Story) -> None:
    story.fail()
    story.ask("w", 1)
    assert story.cycle() == []
    story.say(story.kit.gang("j-0"))
    assert story.cycle() == ["w"]


def test_the_place_is_free_when_the_grace_has_passed(story: Story) -> None:
    story.fail()
    story.ask("w", 1)
    assert story.cycle() == []
    assert story.state.core.wakes_at() is not None
    assert story.cycle(REQUEUE_S) == ["w"]
    assert story.kept() == {}


def test_a_next_attempt_after_the_grace_is_still_first(story: Story) -> None:
    story.fail()
    story.cycle(REQUEUE_S + 1)
    story.ask("w", 2, age=-5)
    story.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert story.cycle() == []
    story.end("full")
    assert story.cycle() == ["j-1"]


def test_a_next_attempt_that_came_before_its_last_one_ended_has_the_place(story: Story) -> None:
    story.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert story.cycle() == []
    story.fail()
    assert story.kept() == {"j-1": ["n0"]}
    story.end("full")
    assert story.cycle() == ["j-1"]
    assert story.kept() == {}


def test_a_next_attempt_that_wants_other_pods_uses_what_it_can(story: Story) -> None:
    kept = healthy_node(story)
    story.fail()
    story.ask("j-1", 1, job="j", follows="j-0")
    assert story.cycle() == ["j-1"]
    assert story.nodes_of("j-1") == [kept]


def test_a_next_attempt_that_cannot_start_in_time_waits_on_without_the_place(
    story: Story,
) -> None:
    story.fail()
    story.ask("j-1", 2, job="j", follows="j-0")
    assert story.cycle() == []
    story.cycle(REQUEUE_S)
    assert story.kept() == {}
    story.end("full")
    assert story.cycle() == ["j-1"]


def test_the_lost_node_that_comes_back_completes_the_place(story: Story) -> None:
    story.fail()
    story.ask("w", 1, age=-5)
    story.ask("j-1", 2, age=5, job="j", follows="j-0")
    assert story.cycle() == []
    for name in sorted(story.lost):
        story.state.ledger.take_back(name)
    story.lost.clear()
    assert story.cycle() == ["j-1"]
    assert story.nodes_of("j-1") == ["n0", "n1"]


def test_kept_cells_that_turn_bad_are_not_charged(story: Story) -> None:
    kept = healthy_node(story)
    story.fail()
    charged = story.state.core.cells.quotas()["default"].charged
    story.bad[kept] = (0,)
    story.cycle()
    assert story.state.core.cells.quotas()["default"].charged == charged - 1
    story.ask("j-1", 2, job="j", follows="j-0")
    assert story.cycle() == []
    story.bad.clear()
    story.end("full")
    assert story.cycle() == ["j-1"]


def test_a_gang_that_leaves_already_keeps_nothing(story: Story) -> None:
    story.ask("high", 3, priority=20)
    story.cycle()
    assert story.state.core.gang("j-0").preempted_until is not None  # type: ignore[union-attr]
    story.end("j-0", GangEnd.REQUEUED)
    story.cycle()
    assert story.kept() == {}


def test_a_higher_priority_is_not_held_back(story: Story) -> None:
    story.fail()
    story.ask("high", 1, priority=20)
    assert story.cycle() == ["high"]


def test_the_same_end_twice_keeps_the_place_once(story: Story) -> None:
    story.fail()
    before = story.state.core.rows.reservations()
    story.end("j-0", GangEnd.REQUEUED)
    story.cycle()
    assert story.state.core.rows.reservations() == before


@pytest.mark.parametrize("when", ["ended", "unseen end", "asked", "unseen ask"])
def test_a_restart_keeps_the_place_and_the_order(story: Story, when: str) -> None:
    kept = healthy_node(story)
    story.ask("w", 1, age=-5)
    if when == "unseen end":
        node = story.state.ledger.pods["j-0-w-1"]
        story.lost.add(node)
        story.state.lose(node, story.now)
        story.store.write(story.state, [])
        story.store.record(story.message("j-0", 0, end=GangEnd.REQUEUED, failed=("j-0-w-1",)))
    else:
        story.fail()
    following = story.message("j-1", 2, age=5, job="j", follows="j-0")
    if when == "asked":
        story.say(following)
        story.cycle()
    if when == "unseen ask":
        story.store.record(following)
    story.restart()
    gang = "j-1" if when in ("asked", "unseen ask") else "j-0"
    assert story.kept() == {gang: [kept]}
    if gang == "j-0":
        story.say(following)
    assert story.cycle() == []
    story.end("full")
    assert story.cycle() == ["j-1"]
    assert kept in story.nodes_of("j-1")


def test_what_is_stored_goes_with_the_grace(story: Story) -> None:
    story.fail()
    assert story.store.reservations.keys() == {"j-0"}
    story.cycle(REQUEUE_S + 1)
    assert story.store.reservations == {}


def test_another_configuration_keeps_the_place(story: Story) -> None:
    kept = healthy_node(story)
    story.fail()
    cells = {"default": VirtualCluster((QuotaCells("node", 2),))}
    story.state.change(replace(FILE, virtual_clusters=cells), story.now)
    story.cycle()
    assert story.kept() == {"j-0": [kept]}


def test_a_virtual_cluster_that_is_gone_keeps_nothing(story: Story) -> None:
    story.fail()
    cells = {"lab": VirtualCluster((QuotaCells("node", 3),))}
    story.state.change(replace(FILE, virtual_clusters=cells), story.now)
    story.cycle()
    assert story.kept() == {}


def test_why_names_the_kept_place_to_others_and_to_the_next_attempt(story: Story) -> None:
    story.fail()
    story.ask("w", 1, age=7)
    story.cycle()
    other = story.state.reason_of("w")
    assert other is not None
    assert (other.code, other.numbers["for"]) == ("reservation", "j-0")
    assert other.text.startswith(
        "A failure or a drain took nodes of a job of user. Cells are kept until 1970-01-"
    )
    story.ask("j-1", 2, job="j", follows="j-0")
    story.cycle()
    own = story.state.reason_of("j-1")
    assert own is not None
    assert "Cells of its last attempt are kept until 1970-01-01" in own.text
    assert story.state.core.questions.starts_at("j-1") is None
    assert "expectedStart" not in own.numbers


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_snapshot_has_the_place_and_the_simulator_reads_it(story: Story, is_asked: bool) -> None:
    story.fail()
    if is_asked:
        story.ask("j-1", 2, age=5, job="j", follows="j-0")
        story.cycle()
    lines = [json.dumps(each).encode() for each in timed(take(story.state.core), story.now)]
    simulation = Simulation(FILE, lambda _: None)
    for event in read_events(lines):
        simulation.apply(event)
    assert simulation.core.rows.reservations() == story.state.core.rows.reservations()


def test_the_record_has_the_end_and_until_when_the_place_is_kept(story: Story) -> None:
    story.state.given.take_noted()
    story.fail()
    lines = [json.loads(line) for noted in story.state.given.take_noted() for line in noted.lines]
    (end,) = (each for each in lines if each["event"] == "gang-released")
    assert (end["gang"], end["keptUntil"]) == ("j-0", story.now - 1 + REQUEUE_S)


def test_cells_show_for_whom_they_are_kept(story: Story) -> None:
    kept = healthy_node(story)
    story.fail()
    core = story.state.core
    shown = [core.cells.slot(slot) for slot in core.forest.machines[kept]]
    assert [(each.gang, each.leaves) for slot in shown for each in slot.reserved] == [("j-0", 3)]


@pytest.mark.parametrize("seed", range(8))
def test_after_any_cycle_a_restart_has_the_same_places_and_order(kit: Kit, seed: int) -> None:
    chance, story = random.Random(seed), Story(kit)
    names, follows, kept = ["j-0", "full"], list[str](), 0
    for number in range(40):
        if chance.random() < 0.5 or not names:
            names.append(f"g{number}")
            followed = follows.pop() if follows and chance.random() < 0.7 else None
            count, priority = chance.choice((1, 2)), chance.choice((5, 10))
            story.ask(names[-1], count, priority=priority, follows=followed)
        else:
            name = names.pop(chance.randrange(len(names)))
            is_requeued = chance.random() < 0.7
            follows += [name] if is_requeued else []
            story.end(name, GangEnd.REQUEUED if is_requeued else GangEnd.SUCCEEDED)
        story.bad[chance.choice(NODES)] = chance.choice(((), (0,)))
        story.cycle(chance.choice((1.0, 5.0, 40.0)))
        before = story.state.core
        story.restart()
        after = story.state.core
        assert after.questions.first(99) == before.questions.first(99)
        rows, again = before.rows.reservations(), after.rows.reservations()
        assert sorted(again, key=repr) == sorted(rows, key=repr)
        kept += len(story.kept())
    assert kept
