"""Which of the Launcher's words are recorded."""

from typing import Any

import pytest
from muster.aggregates import Dead, Due
from muster.contracts.gangs import PodAsk
from muster.contracts.topics import Kind
from muster.errors import Broken
from scheduler.handlers import record

Kit = Any


def test_the_newest_word_is_recorded_as_it_is(kit: Kit) -> None:
    word = kit.gang("j-0", *kit.pods("j-0", 2, gpus=1))
    assert record("j-0", None, word, kit.start).state == word


@pytest.mark.parametrize(
    "pods",
    [
        (PodAsk(pod="j-0-w-0-0", role="w"), PodAsk(pod="j-0-w-0-0", role="w")),
        (PodAsk(pod="other-0-w-0-0", role="w"),),
        (PodAsk(pod="j-0-w-0-0", role="w", gpus=-1),),
        (PodAsk(pod="j-0-w-0-0", role="w", ports={"http": -1}),),
    ],
    ids=["a pod twice", "another gang's pod", "negative GPUs", "negative ports"],
)
def test_a_word_that_makes_no_sense_is_a_dead_letter(kit: Kit, pods: tuple[PodAsk, ...]) -> None:
    with pytest.raises(Broken):
        record("j-0", None, kit.gang("j-0", *pods), kit.start)


@pytest.mark.parametrize("given", [Due(), Dead(Kind.GANG, "j-0")])
def test_nothing_else_changes_a_gang(kit: Kit, given: Any) -> None:
    decision = record("j-0", None, given, kit.start)
    assert (decision.state, decision.says) == (None, ())
