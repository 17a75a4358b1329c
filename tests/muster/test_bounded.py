"""Counts by user in a bounded number of series."""

from hypothesis import given
from hypothesis import strategies as st
from muster.bounded import OTHERS, bounded

NAMES = st.sampled_from("abcdef")


def test_users_with_the_most_gpus_in_all_states_are_named() -> None:
    gpus = {
        ("a", "ann", "waiting"): 5,
        ("a", "ann", "running"): 5,
        ("b", "ben", "running"): 8,
        ("b", "cid", "running"): 7,
        ("b", "dan", "running"): 1,
    }
    assert bounded(gpus, 2) == {
        ("a", "ann", "waiting"): 5,
        ("a", "ann", "running"): 5,
        ("b", "ben", "running"): 8,
        ("b", OTHERS, "running"): 8,
    }
    assert bounded(gpus, 4) == gpus


@given(st.dictionaries(st.tuples(NAMES, NAMES, NAMES), st.integers(0, 99)), st.integers(1, 6))
def test_no_count_is_lost_and_no_user_too_many(
    counts: dict[tuple[str, str, str], int], most: int
) -> None:
    found = bounded(counts, most)
    assert sum(found.values()) == sum(counts.values())
    assert len({user for _, user, _ in found} - {OTHERS}) <= most
