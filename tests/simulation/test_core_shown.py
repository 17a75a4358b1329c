"""What the core shows of nodes."""

from scenes import config, gang, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import Placed


def test_foreign_pods_ports_are_not_assigned_and_avoided_ones_are_last() -> None:
    limits = NodeLimits(ports=(20_000, 20_003))
    one = (PhysicalCell("old-node", name="n0"),)
    core = Core(config(one, {"n0": limits}, a=owning(("old-node", 1))))
    assert core.nodes.block("n0", (), {}, (20_000,), (20_001,))
    assert not core.nodes.block("n0", (), {}, (20_000,), (20_001,))
    core.request(gang("first", "a", 1, ports=1))
    core.request(gang("second", "a", 1, ports=2))
    placed = [each for each in core.cycle(1.0) if isinstance(each, Placed)]
    assert [pod.ports for each in placed for pod in each.pods] == [(20_002,), (20_001, 20_003)]
    known = core.nodes.of("n0")
    assert known is not None
    assert set(known.used_ports) == {20_001, 20_002, 20_003}


def test_conditions_are_taken_over_by_nodes_that_are_still_there() -> None:
    before, after = Core(config(a=owning())), Core(config((), nodes={"n0": NodeLimits()}))
    before.nodes.drain("n3")
    after.nodes.take_over(before.nodes)
    assert after.nodes.of("n3") is None
    again = Core(config(nodes={"n0": NodeLimits(cpu=4)}, a=owning()))
    before.nodes.set_gpu_health("n0", 2, False)
    before.nodes.block("n0", (1,), {"cpu": 1}, (20_000,), (20_001,))
    again.nodes.take_over(before.nodes)
    for name in ("n1", "n3"):
        assert again.nodes.of(name) == before.nodes.of(name)
    known = again.nodes.of("n0")
    assert known is not None
    assert (known.bad, known.blocked, known.left) == ({2}, (1,), {"cpu": 3})
    assert (known.ports, known.avoided) == ((20_000,), (20_001,))
