"""Run times are a pure function of the runs that ended: their newest, and nothing else."""

from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from muster.contracts.gangs import PodAsk
from scheduler.domain.run_times import (
    HIGH,
    LEVELS,
    NAME_LENGTH,
    SHAPE_LENGTH,
    Bounds,
    Key,
    Run,
    RunTimes,
    pattern_of,
    quantile,
    shape_of,
)

KEYS = [Key(user, name, shape) for user in "uv" for name in "ab" for shape in ("1", "8")]
FEW = st.lists(
    st.builds(
        Run, st.sampled_from(KEYS), st.integers(0, 12).map(float), st.sampled_from([1, 2, 3, 60])
    ),
    max_size=60,
)
MANY = Bounds(runs=3, keys=1000, user_keys=1000, kept_s=1e9)


def newest(runs: Sequence[Run], count: int) -> list[tuple[float, int]]:
    return sorted((run.ended_at, run.seconds) for run in runs)[-count:]


def in_steps(runs: Sequence[Run], bounds: Bounds) -> RunTimes:
    """As they come: all of one time at once."""
    known = RunTimes(bounds)
    for at in sorted({run.ended_at for run in runs}):
        known.note([run for run in runs if run.ended_at == at])
    return known


def all_of(known: RunTimes) -> Any:
    """What is known, in the order in which it will be forgotten, and what is expected of it."""
    return list(known.histories.items()), [known.estimate(key) for key in KEYS]


@given(runs=FEW)
def test_a_window_has_the_newest_runs_that_have_the_same_in_common(runs: list[Run]) -> None:
    known = in_steps(runs, MANY)
    for key in KEYS:
        for level in LEVELS:
            alike = [
                run
                for run in runs
                if run.key.user == key.user
                and (not level.is_same_name or run.key.name == key.name)
                and (not level.is_same_shape or run.key.shape == key.shape)
            ]
            expected = sorted(seconds for _, seconds in newest(alike, MANY.runs))
            assert known.window(key, level) == expected


@given(runs=FEW, seed=st.integers(0, 99))
def test_the_order_in_which_runs_of_one_time_are_told_is_of_no_effect(
    runs: list[Run], seed: int
) -> None:
    """Nor is how many are told at once."""
    bounds = Bounds(runs=2, keys=5, user_keys=3, kept_s=6.0)
    shuffled = list(runs)
    Random(seed).shuffle(shuffled)
    at_once = RunTimes(bounds)
    at_once.note(shuffled)
    assert all_of(at_once) == all_of(in_steps(shuffled, bounds)) == all_of(in_steps(runs, bounds))


@given(runs=FEW, looks=st.lists(st.integers(0, 12), max_size=4))
def test_who_follows_knows_what_the_leader_and_a_restart_know(
    runs: list[Run], looks: list[int]
) -> None:
    """And what is stored is told by what `note` returns."""
    bounds = Bounds(runs=2, keys=5, user_keys=3, kept_s=6.0)
    leader, standby, rows, changed = RunTimes(bounds), RunTimes(bounds), {}, set()
    for at in sorted({run.ended_at for run in runs}):
        for key, history in leader.note([r for r in runs if r.ended_at == at]).items():
            changed.add(key)
            if history is None:
                rows.pop(key, None)
            else:
                rows[key] = history
        if at in looks:
            some = {key: rows[key] for key in changed & rows.keys()}
            standby.restore(some, changed - rows.keys())
            changed.clear()
            restarted = RunTimes(bounds)
            restarted.restore(dict(sorted(rows.items())))
            assert all_of(standby) == all_of(restarted) == all_of(leader)
    assert rows == leader.histories


@given(runs=FEW)
def test_the_first_level_with_enough_runs_answers(runs: list[Run]) -> None:
    bounds = Bounds(runs=12, keys=1000, kept_s=1e9)
    known = in_steps(runs, bounds)
    for key in KEYS:
        able = [level for level in LEVELS if len(known.window(key, level)) >= level.least]
        estimate = known.estimate(key)
        if not able:
            assert estimate is None
            continue
        assert estimate is not None
        window = known.window(key, able[0])
        assert estimate.level is able[0]
        assert estimate.runs == len(window)
        assert estimate.high_s == quantile(window, HIGH)


@given(
    window=st.lists(st.integers(1, 9), min_size=1).map(sorted), share=st.sampled_from([0.5, 0.9])
)
def test_a_quantile_is_the_least_that_so_many_are_not_above(
    window: list[int], share: float
) -> None:
    found = quantile(window, share)
    assert sum(each <= found for each in window) >= share * len(window)
    assert found == window[0] or sum(each < found for each in window) < share * len(window)
    assert found == window[max(ceil(share * len(window)), 1) - 1]


def test_two_runs_of_a_kind_are_enough_and_the_longer_one_is_expected() -> None:
    known = RunTimes()
    key = Key("u", "a", "1")
    known.note([Run(key, 1.0, 500)])
    assert known.estimate(key) is None
    known.note([Run(key, 2.0, 100)])
    estimate = known.estimate(key)
    assert estimate is not None
    assert (estimate.high_s, estimate.runs) == (500, 2)


def test_nobody_learns_from_other_users() -> None:
    known = RunTimes()
    known.note([Run(Key("u", "a", "1"), float(at), 5) for at in range(20)])
    assert known.estimate(Key("v", "a", "1")) is None


def test_those_without_a_run_for_the_longest_go_first() -> None:
    known = RunTimes(Bounds(keys=3, user_keys=2))
    for at, user in enumerate("abc"):
        known.note([Run(Key(user, "n", "1"), float(at), 5)])
    known.note([Run(Key("a", "n", "1"), 3.0, 5)])
    changed = known.note([Run(Key("d", "n", "1"), 4.0, 5)])
    assert {key.user for key, history in changed.items() if history is None} == {"b"}
    assert {key.user for key in known.histories} == set("acd")


def test_who_uses_many_names_costs_others_nothing() -> None:
    known = RunTimes(Bounds(keys=10, user_keys=4))
    known.note([Run(Key("quiet", "n", "1"), 0.0, 5)])
    for at in range(50):
        known.note([Run(Key("loud", f"n{at}", "1"), float(at), 5)])
    assert len(known) == 5
    assert known.histories[Key("quiet", "n", "1")].seconds == (5,)
    assert {key.name for key in known.histories if key.user == "loud"} == {
        f"n{at}" for at in range(46, 50)
    }


def test_what_is_kept_for_long_without_a_run_is_forgotten() -> None:
    known = RunTimes(Bounds(kept_s=100.0))
    old, new = Key("u", "old", "1"), Key("u", "new", "1")
    known.note([Run(old, 0.0, 5), Run(old, 1.0, 5)])
    assert known.note([Run(new, 101.0, 5)]).keys() == {new}
    assert known.note([Run(new, 101.5, 5)]) == {old: None, new: known.histories[new]}
    assert known.estimate(old) is None


def test_questions_about_what_is_not_known_are_not_kept() -> None:
    """Anybody may ask for anything."""
    known = RunTimes()
    known.note([Run(Key("u", "a", "1"), 0.0, 5)])
    before = len(known.groups)
    for number in range(100):
        assert known.estimate(Key(f"u{number}", "a", "1")) is None
        assert known.estimate(Key("u", f"a{number}", f"{number}")) is None
    assert len(known.groups) <= before + 4 * len(known)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train", "train"),
        ("Train_001", "train_#"),
        ("resnet50-lr0-1-bs32", "resnet#-lr#-bs#"),
        ("eval-2026-01-31_12-30-00", "eval-#"),
        ("eval-20260131T123000", "eval-#"),
        ("job-550e8400-e29b-41d4-a716-446655440000", "job-#"),
        ("job_550e8400e29b41d4a716446655440000", "job_#"),
        ("job_3f2a1b9", "job_#"),
        ("job-x7k2p", "job-#"),
        ("decade-faces", "decade-faces"),
        ("llama3-8b-sft", "llama#b-sft"),
        ("gpt2xl4bit", "gpt#xl#bit"),
        ("7", "#"),
        ("", ""),
        ("x" * 300, "x" * NAME_LENGTH),
    ],
)
def test_what_varies_in_names_is_one_sign(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern


@given(name=st.text(max_size=300))
def test_a_pattern_is_bounded_and_is_its_own(name: str) -> None:
    pattern = pattern_of(name)
    assert len(pattern) <= NAME_LENGTH
    assert not any(sign in "0123456789" for sign in pattern)


def test_shapes_are_coarse() -> None:
    def pods(*gpus: int, types: tuple[str, ...] = ()) -> str:
        return shape_of([PodAsk(pod="p", role="r", gpus=n, gpu_types=types) for n in gpus])

    assert (pods(), pods(0, 0, types=("a",)), pods(1), pods(8, 0)) == ("0", "0", "1", "8")
    assert pods(8, 8, 4) == pods(32) == "32"
    assert pods(8, types=("h200", "a100")) == "8 h200"
    assert len(pods(8, types=("t" * 300,))) == SHAPE_LENGTH
