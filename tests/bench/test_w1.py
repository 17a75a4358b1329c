"""The stream that schedulers are measured with is the same for all of them, for ever."""

import hashlib
import itertools

import pytest
from w1 import Arrival, lines, stream


@pytest.mark.parametrize(
    ("nodes", "arrivals", "sha256"),
    [
        (128, 20_000, "db86c3db4a7bc16be29987af0e8b83e0ef704757b5c39c0357446a0ffe6653ad"),
        (1_024, 20_000, "4ed93f7df953783e4d0bc428cb09fe97b94ef7302f3eac6332a364614ac579fe"),
        (4_096, 10_000, "2add5a7993b0e3d49b9a7298a95979ee94590c6915688ee4c71888b12fa73ffd"),
        (16_384, 4_000, "f0d295c65b71bbd9c835dcca30b795a5ceb355946dc6239563c0431fcfd15cda"),
    ],
)
def test_the_stream_is_the_published_one_to_the_byte(
    nodes: int, arrivals: int, sha256: str
) -> None:
    digest = hashlib.sha256()
    for line in lines(nodes, arrivals):
        digest.update(line.encode())
    assert digest.hexdigest() == sha256


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    short = list(stream(128, 500))
    assert list(itertools.islice(stream(128, 2_000), len(short))) == short


def test_another_seed_is_another_stream() -> None:
    def sizes(seed: int) -> list[tuple[str, int, int]]:
        arrivals = (event for event in stream(128, 200, seed) if isinstance(event, Arrival))
        return [(each.virtual_cluster, each.pods, each.gpus) for each in arrivals]

    assert sizes(1) != sizes(2)
    assert sizes(1) == sizes(1)
