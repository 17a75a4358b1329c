"""Decisions as lines: to the byte."""

import pytest
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Grown,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Reason,
    Refused,
    Upgraded,
)
from scheduler.domain.formats.decisions import decision_line

REASON = Reason("quota", 'no "quota" für b', {"wanted": 8, "free": 2.0, "share": 0.5, "of": None})
TOLD = '{"code":"quota","text":"no \\"quota\\" für b","wanted":8,"free":2,"share":0.5,"of":null}'


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (
            Placed("a", (PodPlace("w-0", "n0", (0, 1), (20000,)), PodPlace("c-0", "n1"))),
            '{"at":12,"decision":"placed","gang":"a","pods":[{"pod":"w-0","node":"n0","gpus":[0,1],'
            '"ports":[20000]},{"pod":"c-0","node":"n1","gpus":[],"ports":[]}]}',
        ),
        (
            Grown("a", (PodPlace("w-2", "n0", (2,)),)),
            '{"at":12,"decision":"grown","gang":"a","pods":[{"pod":"w-2","node":"n0","gpus":[2],'
            '"ports":[]}]}',
        ),
        (
            Placed("a", (PodPlace("c-0", "n1"),), "speech"),
            '{"at":12,"decision":"placed","gang":"a","pods":[{"pod":"c-0","node":"n1","gpus":[],'
            '"ports":[]}],"lender":"speech"}',
        ),
        (
            Deferred("b", REASON),
            f'{{"at":12,"decision":"deferred","gang":"b","reason":{TOLD}}}',
        ),
        (Refused("b", REASON), f'{{"at":12,"decision":"refused","gang":"b","reason":{TOLD}}}'),
        (
            Preempted("c", "d", 42.0, REASON),
            '{"at":12,"decision":"preempted","gang":"c","pods":null,"for":"d","until":42,'
            f'"reason":{TOLD}}}',
        ),
        (
            PreemptionCancelled("d"),
            '{"at":12,"decision":"preemption-cancelled","gang":"d"}',
        ),
        (Downgraded("c", None), '{"at":12,"decision":"downgraded","gang":"c","for":null}'),
        (Upgraded("c"), '{"at":12,"decision":"upgraded","gang":"c"}'),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_decision_is_this_line(decision: Decision, line: str) -> None:
    assert decision_line(12.0, decision) == line


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.25, "0.25"),
        (1e15, "1000000000000000"),
        (111.00000000000001, "111"),
    ],
)
def test_a_time_is_an_integer_where_it_is_whole(at: float, said: str) -> None:
    assert decision_line(at, Upgraded("c")).startswith(f'{{"at":{said},')
