"""Positions as the id of an event: small enough for a header, and read back as they were."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.errors import Rejected
from rest.domain.event_stream import TOPICS, format_positions, parse_positions

HEADER_BYTES = 2_048
OFFSETS = st.lists(st.integers(0, 2**63 - 1), max_size=70)


@given(st.dictionaries(st.sampled_from(TOPICS), OFFSETS))
def test_an_id_is_read_back_as_it_was(topics: dict[str, list[int]]) -> None:
    positions = {
        (topic, part): at for topic, offsets in topics.items() for part, at in enumerate(offsets)
    }
    assert parse_positions(format_positions("0a1b2c3d", positions)) == ("0a1b2c3d", positions)


def test_an_id_of_before_has_no_bus() -> None:
    assert parse_positions("job-updated=AQ") == (None, {("job-updated", 0): 1})


def test_an_id_of_all_topics_with_64_partitions_fits_into_a_header() -> None:
    positions = {(topic, part): 2**28 - 1 for topic in TOPICS for part in range(64)}
    assert len(format_positions("0a1b2c3d", positions)) < HEADER_BYTES


@given(st.text(st.sampled_from("job-updated=,Aa09_-/+ ~")))
def test_any_text_is_positions_or_refused(text: str) -> None:
    with suppress(Rejected):
        assert all(at < 2**63 for at in parse_positions(text)[1].values())


TOO_LARGE = "_" * 12 + "AQ"


@pytest.mark.parametrize("text", [f"job-updated={it}" for it in ("gA", "A", TOO_LARGE)])
def test_an_id_that_was_cut_or_altered_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="Last-Event-ID"):
        parse_positions(text)
