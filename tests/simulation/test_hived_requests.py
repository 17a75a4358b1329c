"""What HiveD's configuration and requests can say: each line of its list, once and small; where
Muster does better the test says how. C: configuration, R: request.
"""

from dataclasses import replace

import pytest
from core_door import CoreDoor
from scenes import RACKS, Scene, code_of, config, gang, nodes_of, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import (
    CellUse,
    Deferred,
    Gang,
    Kind,
    Placed,
    Refused,
    Role,
)


def test_c1_chains_share_a_leaf_type_and_a_machine_is_in_several_chains() -> None:
    k80s = PhysicalCell(
        "k80-node",
        name="n0",
        children=(PhysicalCell("k80", index=8), PhysicalCell("k80", index=9)),
    )
    cells = (*RACKS, PhysicalCell("old-node", name="m0"), k80s)
    scene = Scene(config(cells, x=owning(("old-node", 1), ("rack/node", 1), ("k80-node", 1))))
    (pod,) = scene.places(gang("k", "x", 2, gpu_types=("k80",)))
    assert (pod.node, pod.gpus) == ("n0", (8, 9))
    both = scene.places(gang("v", "x", 2, pods=3, gpu_types=("v100",)))
    assert "m0" in nodes_of(both)
    assert len(nodes_of(both)) == 2


def test_c2_physical_cells_have_names_and_indices_of_their_own() -> None:
    switches = (
        PhysicalCell(
            "switch", children=(PhysicalCell("v100", index=3), PhysicalCell("v100", index=5))
        ),
        PhysicalCell(
            "switch", children=(PhysicalCell("v100", index=7), PhysicalCell("v100", index=1))
        ),
    )
    scene = Scene(
        config((PhysicalCell("node", name="m0", children=switches),), x=owning(("node", 1)))
    )
    (pod,) = scene.places(gang("a", "x", 4))
    assert (pod.node, sorted(pod.gpus)) == ("m0", [1, 3, 5, 7])
    assert scene.core.exported("a").cells == (CellUse("m0", "node"),)


def test_c2_a_cells_address_is_the_names_on_the_way_to_it_or_their_numbers() -> None:
    left = PhysicalCell("switch", name="left")
    row = PhysicalCell("node", name="n1", children=(left, PhysicalCell("switch")))
    cells = (PhysicalCell("rack", children=(PhysicalCell("node", name="n0"), row)),)
    scene = Scene(config(cells, x=owning(("rack/node/switch", 4))))
    addresses = {}
    for name in "abcd":
        (pod,) = scene.places(gang(name, "x", 2))
        (use,) = scene.core.exported(name).cells
        addresses[use.cell] = (pod.node, pod.gpus)
    assert addresses == {
        "0/n0/0": ("n0", (0, 1)),
        "0/n0/1": ("n0", (2, 3)),
        "0/n1/left": ("n1", (0, 1)),
        "0/n1/1": ("n1", (2, 3)),
    }


@pytest.mark.parametrize(
    ("path", "count", "gpus"),
    [
        ("rack", 1, 8),
        ("rack/node", 1, 4),
        ("rack/node/switch", 1, 2),
        ("rack/node/switch/v100", 1, 1),
    ],
)
def test_c3_quota_is_cells_of_any_level(path: str, count: int, gpus: int) -> None:
    scene = Scene(config(x=owning((path, count))))
    (refused,) = scene.asks(gang("more", "x", 1, pods=gpus + 1))
    assert isinstance(refused, Refused)
    assert len(scene.places(gang("all", "x", 1, pods=gpus))) == gpus
    (waits,) = scene.asks(gang("late", "x", 1))
    assert code_of([waits], "late") == "quota"


def test_c3_a_gpu_quota_serves_a_pod_of_two_gpus_on_one_node() -> None:
    """HiveD never uses two one-GPU cells for one pod."""
    scene = Scene(config(x=owning(("rack/node/switch/v100", 2))))
    (pod,) = scene.places(gang("pair", "x", 2))
    assert len(pod.gpus) == 2


def test_c3_a_pinned_cell_is_for_those_who_name_it() -> None:
    pinned = PhysicalCell(
        "rack",
        name="r0",
        children=(PhysicalCell("node", name="n0", pin="lab"), PhysicalCell("node", name="n1")),
    )
    scene = Scene(config((pinned, RACKS[1]), x=owning(("rack/node", 1), pins=("lab",))))
    assert nodes_of(scene.places(gang("a", "x", 4))) != {"n0"}
    assert nodes_of(scene.places(gang("b", "x", 4, pin="lab"))) == {"n0"}
    (waits,) = scene.asks(gang("c", "x", 4, pin="lab"))
    assert isinstance(waits, Deferred)


@pytest.mark.parametrize(
    ("owned", "too_many"),
    [
        ([("rack", 2)], []),
        ([("rack", 3)], ["rack"]),
        ([("rack", 1), ("rack/node", 2)], []),
        ([("rack", 1), ("rack/node", 3)], ["node"]),
        ([("rack/node", 3), ("rack/node/switch", 2)], []),
        ([("rack/node", 3), ("rack/node/switch", 2), ("rack/node/switch/v100", 1)], ["v100"]),
        ([("rack", 3), ("rack/node", 1), ("rack/node/switch/v100", 1)], ["rack", "node", "v100"]),
    ],
)
def test_c4_what_can_not_be_honoured_is_refused_with_every_reason(
    owned: list[tuple[str, int]], too_many: list[str]
) -> None:
    if not too_many:
        CoreDoor(config(x=owning(*owned)))
        return
    with pytest.raises(ConfigError) as refusal:
        CoreDoor(config(x=owning(*owned)))
    assert [finding.message.split()[1] for finding in refusal.value.findings] == too_many


def test_c5_a_new_configuration_needs_no_restart() -> None:
    """HiveD ends its process and recovers."""
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("a", "x", 4))
    (waits,) = scene.asks(gang("b", "x", 4))
    assert isinstance(waits, Deferred)
    scene.core.change(config(x=owning(("rack/node", 2))), scene.now)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert placed.gang == "b"


def test_r1_a_gang_has_roles_of_different_sizes() -> None:
    """HiveD knows GPUs alone; here a pod has CPU, memory, ports and counted resources too."""
    limits = {f"n{n}": NodeLimits(16, 4000, (20000, 20003), {"rdma": 1}) for n in range(4)}
    roles = (
        Role(Kind(4), ("worker-0",)),
        Role(Kind(1, cpu=4, memory_mb=1000, ports=1, resources=(("rdma", 1),)), ("ps-0",)),
    )
    scene = Scene(config(nodes=limits, x=owning(("rack", 1))))
    pods = scene.places(replace(gang("a", "x", 1), roles=roles))
    by_name = {pod.pod: pod for pod in pods}
    assert len(by_name["worker-0"].gpus) == 4
    assert len(by_name["ps-0"].ports) == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (gang("a", "nobody", 1), "unknown-virtual-cluster"),
        (gang("a", "x", 1, pin="unknown"), "unknown-pin"),
        (gang("a", "x", 1, pin="lab", priority=-1), "pin"),
        (gang("a", "x", 1, gpu_types=("h100",)), "unknown-gpu-type"),
        (gang("a", "x", 1, gpu_types=("k80",)), "too-large"),
        (gang("a", "x", 5), "too-large"),
        (gang("a", "x", 4, pods=5, priority=-1), "too-large"),
    ],
)
def test_r2_what_can_never_be_placed_is_refused_with_a_reason(asked: Gang, code: str) -> None:
    """What makes no sense (a priority of 1001, no pods) is refused where a request is read."""
    cells = (*RACKS, PhysicalCell("k80-node", "m0"), PhysicalCell("old-node", "m1", pin="lab"))
    scene = Scene(config(cells, x=owning(("rack", 1), pins=("lab",)), y=owning(("k80-node", 1))))
    (refused,) = scene.asks(asked)
    assert isinstance(refused, Refused)
    assert refused.reason.code == code
    assert refused.reason.text
