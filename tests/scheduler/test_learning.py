"""How long a gang will run is learnt from those that ended, told to the core once, and kept."""

from typing import Any

import pytest
from muster.contracts.gangs import GangEnd, GangRequest
from scheduler.domain.core.model import Gang
from scheduler.domain.rules import Rules
from scheduler.domain.run_times import Key
from scheduler.domain.state import State
from scheduler.domain.stored import Stored

Kit = Any
KEY = Key("user", "train-#", "1")


def asked(kit: Kit, gang: str, count: int = 1, **more: Any) -> GangRequest:
    """A gang of a job that is called as the others are."""
    message: GangRequest = kit.gang(gang, *kit.pods(gang, count, gpus=1))
    return message.model_copy(update={"name": f"train-{gang[1:]}", **more})


def ended(kit: Kit, gang: str, **more: Any) -> GangRequest:
    return asked(kit, gang, 0, **{"end": GangEnd.SUCCEEDED} | more)


def ran(kit: Kit, state: State, gang: str, seconds: float, **more: Any) -> None:
    """From 0 on, for so long."""
    state.request(asked(kit, gang), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.request(ended(kit, gang, **more), seconds, seconds)
    state.take_changes()


def known(state: State, gang: str) -> Gang:
    """A gang as the core has it."""
    found = state.core.gang(gang)
    assert found is not None
    return found.gang


def expected(state: State, gang: str) -> float | None:
    return known(state, gang).expected_s


def test_a_gang_that_ran_twice_is_expected_to_take_as_long_again(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    ran(kit, state, "g0", 100.0)
    state.request(asked(kit, "g1"), 0.0, 100.0)
    assert expected(state, "g1") is None
    kit.decide(state, 100.0)
    state.request(ended(kit, "g1"), 150.2, 150.2)
    state.take_changes()
    state.request(asked(kit, "g2"), 200.0, 200.0)
    assert expected(state, "g2") == 100.0
    assert state.run_times.histories[KEY].seconds == (100, 51)


@pytest.mark.parametrize(
    ("end", "is_learnt"),
    [
        (GangEnd.SUCCEEDED, True),
        (GangEnd.STOPPED, True),
        (GangEnd.LIMIT, True),
        (GangEnd.FAILED, False),
        (GangEnd.TAKEN, False),
        (GangEnd.UNKNOWN, False),
        (None, False),
    ],
)
def test_it_is_learnt_from_ends_that_tell_how_long_it_takes(
    kit: Kit, end: GangEnd | None, is_learnt: bool
) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    ran(kit, state, "g0", 100.0, end=end)
    assert (KEY in state.run_times.histories) is is_learnt


def test_nothing_is_learnt_from_a_gang_that_never_ran(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    state.request(asked(kit, "g0"), 0.0, 0.0)
    state.request(asked(kit, "g1"), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.request(ended(kit, "g1", end=GangEnd.STOPPED), 100.0, 100.0)
    state.request(ended(kit, "g2"), 100.0, 100.0)
    assert not state.take_changes().histories


def test_a_gang_ran_from_its_start_until_its_last_pod_was_let_go(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    message = asked(kit, "g0", 3)
    state.request(message, 0.0, 0.0)
    kit.decide(state, 10.0)
    for left, at in ((2, 20.0), (1, 30.0)):
        state.request(message.model_copy(update={"pods": message.pods[:left]}), at, at)
        kit.decide(state, at)
    state.request(ended(kit, "g0"), 110.0, 110.0)
    assert state.take_changes().histories == {
        Key("user", "train-#", "4"): state.run_times.histories[Key("user", "train-#", "4")]
    }
    assert state.run_times.histories[Key("user", "train-#", "4")].seconds == (100,)


def test_a_gang_whose_last_pods_still_waited_ran_as_long_as_the_others_did(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2))
    message = asked(kit, "g0")
    state.request(message, 0.0, 0.0)
    kit.decide(state, 0.0)
    more = kit.pods("g0-more", 1, gpus=2)
    state.request(message.model_copy(update={"pods": message.pods + more}), 10.0, 10.0)
    kit.decide(state, 10.0)
    assert state.ledger.hold_of("g0-more-w-0") is None
    state.request(ended(kit, "g0"), 100.0, 100.0)
    assert state.take_changes().runs["g0"].seconds == 100


def test_what_the_user_says_counts_and_nothing_runs_longer_than_it_may(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    for name in ("g0", "g1"):
        ran(kit, state, name, 100.0)
    state.request(asked(kit, "g2", expected_s=7, min_run_s=3, checkpoint_s=2), 0.0, 0.0)
    state.request(asked(kit, "g3", limit_s=60, borrow=True), 0.0, 0.0)
    state.request(asked(kit, "g4", expected_s=70, limit_s=60), 0.0, 0.0)
    assert [expected(state, name) for name in ("g2", "g3", "g4")] == [7.0, 60.0, 60.0]
    said, silent = (known(state, name) for name in ("g2", "g3"))
    assert (said.min_run_s, said.checkpoint_s, said.limit_s) == (3.0, 2.0, None)
    assert (silent.min_run_s, silent.checkpoint_s, silent.limit_s) == (None, None, 60.0)
    assert (said.is_borrowing, silent.is_borrowing) == (False, True)


def test_what_was_expected_when_it_came_is_kept_whatever_is_learnt_since(kit: Kit) -> None:
    """Also over a restart: what the core was given is replayed to the same decisions."""
    state = kit.state(kit.report("n0", gpus=1))
    for name in ("g0", "g1"):
        ran(kit, state, name, 100.0)
    state.request(asked(kit, "g2"), 200.0, 200.0)
    state.request(asked(kit, "g3"), 200.0, 200.0)
    assert {"g2", "g3"} <= state.take_changes().kept
    kit.decide(state, 200.0)
    state.request(ended(kit, "g2"), 900.0, 900.0)
    state.take_changes()
    kit.decide(state, 900.0)
    assert expected(state, "g3") == 100.0
    again = Stored(Rules(settle_s=0.0))
    again.run_times.restore(state.run_times.histories)
    again.report(kit.report("n0", gpus=1), 900.0)
    again.ledger.receive("n0", "journal-of-n0", 900.0)
    holds = [hold for pod in state.ledger.pods if (hold := state.ledger.hold_of(pod))]
    again.restore_holds(holds, 900.0)
    again.change(None, 900.0)
    again.restore_gang(state.known("g3"), 900.0, 900.0)
    assert expected(again, "g3") == 100.0
    again.request(asked(kit, "g4"), 900.0, 900.0)
    assert expected(again, "g4") == 700.0


def test_an_end_that_no_cycle_has_seen_before_a_restart_is_learnt_from(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    state.request(asked(kit, "g0"), 0.0, 0.0)
    kit.decide(state, 0.0)
    stored = state.known("g0")
    again = Stored(Rules(settle_s=0.0))
    again.report(kit.report("n0", gpus=1), 0.0)
    again.ledger.receive("n0", "journal-of-n0", 0.0)
    hold = state.ledger.hold_of("g0-w-0")
    assert hold is not None
    again.restore_holds([hold], 0.0)
    again.change(None, 0.0)
    message = type(stored)(
        ended(kit, "g0"),
        gang_class=stored.gang_class,
        cells=stored.cells,
        started_at=stored.started_at,
        shape=stored.shape,
    )
    again.restore_gang(message, 50.0, 50.0)
    again.forget(["g0"])
    assert not again.take_changes().runs
    again.restore_holds([hold], 0.0)
    again.restore_gang(message, 50.0, 50.0)
    again.request(message.request, 60.0, 60.0)  # the cycle takes it as it would any other
    assert again.take_changes().runs["g0"].seconds == 50
    assert again.run_times.histories[KEY].seconds == (50,)


def test_what_a_lost_node_took_is_no_run(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    state.request(asked(kit, "g0"), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.lose("n0", 100.0)
    state.request(ended(kit, "g0"), 100.0, 100.0)
    assert not state.take_changes().runs


def test_what_is_expected_is_recorded(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    for name in ("g0", "g1"):
        ran(kit, state, name, 100.0)
    state.given.is_recording = True
    state.request(asked(kit, "g2"), 200.0, 200.0)
    kit.decide(state, 200.0)
    (noted,) = state.given.take_noted()
    assert '"expectedSeconds":100' in noted.lines[0].replace(" ", "")
