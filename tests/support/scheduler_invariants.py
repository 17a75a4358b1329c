"""What is so of the Scheduler's state after every step of a random history."""

from hypothesis.stateful import RuleBasedStateMachine, invariant
from muster.contracts.gangs import GangRequest
from scheduler.domain.state import State
from scheduler_audit import audited
from scheduler_world import NODES, PORTS, World


class Invariants(RuleBasedStateMachine):
    """``requests``: the last message about each gang that is wanted. ``lost_rows``: gangs whose
    rows the store has lost.
    """

    def __init__(self, world: World, state: State) -> None:
        super().__init__()
        self.world = world
        self.state = state
        self.requests: dict[str, GangRequest] = {}
        self.lost_rows: set[str] = set()

    @invariant()
    def nothing_is_held_twice(self) -> None:
        for node in self.state.ledger.nodes.values():
            gpus = [g for h in node.holds.values() if h.is_occupying for g in h.placement.gpus]
            ports = [
                p for h in node.holds.values() if h.is_occupying for p in h.placement.port_numbers
            ]
            assert len(gpus) == len(set(gpus))
            assert len(ports) == len(set(ports))
            assert set(gpus) <= set(range(NODES[node.name][0]))
            assert all(PORTS[0] <= port <= PORTS[1] for port in ports)

    @invariant()
    def nothing_is_given_that_a_pod_of_the_agent_holds(self) -> None:
        """What the agents run, listed or lost or not yet stopped, against what is placed."""
        for name, node in self.state.ledger.nodes.items():
            for pod, running in self.world.running[name].items():
                for other, hold in node.holds.items():
                    if other != pod and hold.is_occupying and not hold.is_lost:
                        place = hold.placement
                        assert not set(running.gpus) & set(place.gpus), (pod, other)
                        assert not set(running.port_numbers) & set(place.port_numbers)

    @invariant()
    def the_accounting_is_right(self) -> None:
        if not self.state.is_under_way:
            assert audited(self.state.core) == []

    @invariant()
    def a_lost_pod_that_nobody_wants_has_no_row(self) -> None:
        for node in self.state.ledger.nodes.values():
            assert all(h.is_wanted or not h.is_lost for h in node.holds.values())

    @invariant()
    def no_node_is_oversubscribed(self) -> None:
        for node in self.state.ledger.nodes.values():
            held = [h.placement for h in node.holds.values() if h.is_occupying]
            assert sum(p.kind.cpu for p in held) <= NODES[node.name][1]
            assert sum(p.kind.memory_mb for p in held) <= 100

    @invariant()
    def no_pod_that_runs_is_placed_elsewhere(self) -> None:
        for name, running in self.world.running.items():
            for pod, place in running.items():
                hold = self.state.ledger.hold_of(pod)
                if hold is not None and not hold.is_lost:
                    found = hold.placement
                    assert (found.node, found.gpus, found.ports) == (name, place.gpus, place.ports)

    @invariant()
    def gangs_are_whole_or_absent(self) -> None:
        for message in self.requests.values():
            if message.gang in self.lost_rows:  # what runs is there before the others have a place
                continue
            first = [ask.pod for ask in message.pods if "more" not in ask.pod and not ask.surplus]
            held = [pod for pod in first if self.state.ledger.hold_of(pod)]
            assert len(held) in (0, len(first))

    @invariant()
    def what_is_reserved_or_placed_is_in_the_core(self) -> None:
        for name, gang in self.state.gangs.items():
            for pod in gang.asks:
                hold = self.state.ledger.hold_of(pod)
                if hold is not None and not hold.is_lost:
                    places = self.state.core.exported(name).places
                    (node,) = (each.node for each in places if each.pod == pod)
                    assert node == hold.placement.node
