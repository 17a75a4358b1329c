"""Which silences are believed."""

from scheduler.domain.leases import Judgement, LeasePolicy, Leases

PARTITIONS = 2
POLICY = LeasePolicy(lease_s=30.0, probe_window_s=6.0, stall_s=5.0, many=0.2)


class Clock:
    """Leases that are judged every second; the speakers speak every second."""

    def __init__(self, *nodes: str) -> None:
        self.leases = Leases(POLICY)
        self.now = 0.0
        self.speaking = set(nodes)
        self.probing = set(range(PARTITIONS))
        for node in nodes:
            self.leases.receive(node, 0.0)

    def run(self, seconds: int) -> list[Judgement]:
        judgements = []
        for _ in range(seconds):
            self.now += 1.0
            for node in self.speaking:
                self.leases.receive(node, self.now)
            for partition in self.probing:
                self.leases.probe_received(partition, self.now)
            judgements.append(self.leases.judge(PARTITIONS, self.now))
        return judgements

    def lost(self, seconds: int) -> list[tuple[float, str]]:
        start = self.now
        return [
            (start + second, node)
            for second, judgement in enumerate(self.run(seconds), 1)
            for node in judgement.lost
        ]


def test_a_silent_node_is_lost_once_when_its_lease_is_over() -> None:
    clock = Clock("a", "b")
    clock.run(10)
    clock.speaking.remove("a")
    assert clock.lost(100) == [(40.0, "a")]


def test_the_only_node_can_be_lost() -> None:
    clock = Clock("a")
    clock.run(1)
    clock.speaking.clear()
    assert clock.lost(60) == [(31.0, "a")]


def test_nobody_is_lost_while_the_probe_does_not_come_round() -> None:
    clock = Clock("a", "b")
    clock.speaking.clear()
    clock.probing = {0}
    assert clock.lost(300) == []
    assert not clock.run(1)[0].is_round
    # The bus is back: everyone has a whole lease to be heard again.
    clock.probing = {0, 1}
    clock.speaking = {"b"}
    assert clock.lost(60) == [(331.0, "a")]


def test_when_many_fall_silent_at_once_nobody_is_lost() -> None:
    clock = Clock(*"abcde")
    clock.run(1)
    clock.speaking -= {"a", "b"}
    judgements = clock.run(200)
    assert not any(judgement.lost for judgement in judgements)
    assert judgements[-1].withheld == ("a", "b")
    clock.speaking.add("b")
    assert clock.lost(2) == [(202.0, "a")]


def test_those_who_fall_silent_a_little_later_count_as_at_once() -> None:
    clock = Clock(*"abcde")
    clock.run(1)
    clock.speaking.remove("a")
    clock.run(9)
    clock.speaking.remove("b")
    assert clock.lost(25) == []


def test_a_process_that_was_away_starts_anew() -> None:
    clock = Clock("a", "b")
    clock.run(10)
    clock.now += 1000.0
    clock.speaking = {"b"}
    assert clock.lost(60) == [(1041.0, "a")]


def test_a_new_leader_starts_anew() -> None:
    clock = Clock("a", "b")
    clock.speaking = {"b"}
    clock.run(29)
    clock.leases.begin_anew(clock.now)
    assert clock.lost(29) == []
    assert [node for _, node in clock.lost(2)] == ["a"]
