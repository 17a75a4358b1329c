"""What a gang is told: whom it waits for, and what can never be."""

from dataclasses import replace

import pytest
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    QuotaCells,
)
from scheduler.domain.core.config import VirtualCluster as Owner
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import (
    NO_ONE,
    OPPORTUNISTIC,
    Deferred,
    Gang,
    GangClass,
    Kind,
    Placed,
    PodPlace,
    Preempted,
    Reason,
    Refused,
    Restored,
    Role,
)
from scheduler.domain.cores import core_of

CONFIG = ClusterConfig(
    cell_types={
        "node": CellType("v100", 2, is_node=True),
        "old-node": CellType("k80", 2, is_node=True),
    },
    physical_cells=(
        PhysicalCell("node", "n0"),
        PhysicalCell("old-node", "k0"),
        PhysicalCell("old-node", "k1", pin="lab"),
    ),
    virtual_clusters={
        "x": Owner((QuotaCells("node", 1), QuotaCells("old-node", 1)), ("lab",)),
        "y": Owner(),
    },
)
ONE = Gang("one", "x", "u", 1, (Role(Kind(2, ("v100",)), ("w-0",)),))


@pytest.fixture
def core() -> Core:
    """Two nodes whose virtual cluster is x, and a pinned one."""
    return core_of(CONFIG)


def told(core: Core, gang: Gang, at: float) -> Reason:
    """Why a gang is not placed."""
    core.request(gang)
    decided = core.cycle(at)
    (said,) = [each for each in decided if isinstance(each, Deferred | Refused)]
    assert said.gang == gang.id
    return said.reason


def test_who_takes_what_others_leave_is_told_for_whom_it_waits(core: Core) -> None:
    core.request(replace(ONE, id="guest", priority=-1))
    core.cycle(0.0)
    assert told(core, ONE, 10.0).numbers["victims"] == 1
    core.release("one")
    reason = told(core, replace(ONE, id="two"), 20.0)
    assert (reason.code, reason.numbers["victims"], reason.numbers["until"]) == (
        "preempting",
        1,
        40,
    )
    assert reason.text == "It starts when 1 gang has left, by 40 at the latest."


def test_pods_that_are_nobodys_are_awaited(core: Core) -> None:
    ended = Gang("ended", NO_ONE, NO_ONE, OPPORTUNISTIC, (Role(Kind(2), ("e-0",)),))
    place = PodPlace("e-0", "n0", (0, 1))
    core.restore(Restored(ended, (place,), GangClass.OPPORTUNISTIC, (), 0.0, 100.0), 100.0)
    reason = told(core, ONE, 200.0)
    assert reason.code == "preempting"
    assert (reason.numbers["victims"], reason.numbers["until"]) == (1, 100.0)


def test_one_of_its_gpu_types_is_enough_not_to_be_refused(core: Core) -> None:
    core.request(ONE)
    core.cycle(0.0)
    either = replace(ONE, id="two", roles=(Role(Kind(2, ("h100", "v100")), ("w-0",)),))
    assert told(core, either, 10.0).code == "quota"
    neither = replace(ONE, id="three", roles=(Role(Kind(2, ("h100", "a100")), ("w-0",)),))
    assert told(core, neither, 20.0).text == (
        "There is no GPU type h100 or a100; there are k80, v100."
    )


def test_nobody_gets_fewer_ports_than_a_node_can_give(core: Core) -> None:
    many = replace(ONE, roles=(Role(Kind(2, ("v100",), ports=45_537), ("w-0",)),))
    assert told(core, many, 0.0).code == "too-large"
    most = replace(ONE, id="most", roles=(Role(Kind(2, ("v100",), ports=45_536), ("w-0",)),))
    core.request(most)
    (placed,) = core.cycle(1.0)
    assert isinstance(placed, Placed)
    assert len(placed.pods[0].ports) == 45_536


def runs(core: Core, name: str, kind: Kind, on: frozenset[str] | None = None) -> None:
    """A gang of priority 1 of one pod starts."""
    roles = (Role(kind, ("w-0",)),)
    core.request(replace(ONE, id=name, roles=roles, allowed_nodes=on))
    (placed,) = core.cycle(0.0)
    assert isinstance(placed, Placed), placed


def wants(*kinds: Kind, pods: int = 1) -> Gang:
    """A gang with a role of each kind."""
    roles = (
        Role(kind, tuple(f"r{n}-{pod}" for pod in range(pods))) for n, kind in enumerate(kinds)
    )
    return replace(ONE, id="late", roles=tuple(roles))


BESIDE = "beside those of gangs of priority 1 or higher"


@pytest.mark.parametrize(
    ("busy", "wanted", "text", "numbers"),
    [
        (
            Kind(2, ("k80",)),
            (Kind(2, ("k80",)),),
            f"1 pod with 2 GPUs: x has no GPU cells of type k80 {BESIDE}, 2 are needed.",
            {"cellsWanted": 2, "cellsLeft": 0, "gpuType": "k80"},
        ),
        (
            Kind(1, pin="lab"),
            (Kind(2, pin="lab"),),
            f"1 pod with 2 GPUs: x has 1 GPU cell in the pin lab {BESIDE}, 2 are needed.",
            {"cellsWanted": 2, "cellsLeft": 1, "pin": "lab"},
        ),
        (
            Kind(2, ("v100",)),
            (Kind(1), Kind(2, ("k80", "v100"))),
            f"2 pods with 3 GPUs: x has 2 GPU cells {BESIDE}, 3 are needed.",
            {"cellsWanted": 3, "cellsLeft": 2},
        ),
        (
            Kind(2, ("v100",)),
            (Kind(2, ("k80",)), Kind(1, pin="lab"), Kind(1, ("v100", "h100"))),
            f"3 pods with 4 GPUs: x has no GPU cells of type v100 or h100 {BESIDE}, 1 is needed.",
            {"cellsWanted": 1, "cellsLeft": 0, "gpuType": "v100, h100"},
        ),
    ],
)
def test_who_has_too_little_quota_is_told_of_what(
    core: Core, busy: Kind, wanted: tuple[Kind, ...], text: str, numbers: dict[str, object]
) -> None:
    runs(core, "busy", busy)
    reason = told(core, wants(*wanted), 1.0)
    assert (reason.code, reason.text) == ("quota", text)
    others = {"pods", "gpus", "cpu", "memoryMB"}
    assert {name: n for name, n in reason.numbers.items() if name not in others} == numbers


def test_of_several_types_all_are_named() -> None:
    types = CONFIG.cell_types | {"box": CellType("a100", 4, is_node=True)}
    cells = (*CONFIG.physical_cells, PhysicalCell("box", "b0"))
    owned = (*CONFIG.virtual_clusters["x"].cells, QuotaCells("box", 1))
    core = core_of(ClusterConfig(types, cells, {}, {"x": Owner(owned, ("lab",))}))
    runs(core, "busy", Kind(2, ("v100",)))
    runs(core, "busy too", Kind(1, ("k80",)))
    reason = told(core, wants(Kind(2, ("v100", "k80"))), 1.0)
    assert reason.text == (
        f"1 pod with 2 GPUs: x has 1 GPU cell of type v100 or k80 {BESIDE}, 2 are needed."
    )
    assert reason.numbers["gpuType"] == "v100, k80"


@pytest.fixture
def limited() -> Core:
    """Two nodes of two GPUs and eight CPUs each; both are x's, and y owns nothing."""
    types = {"node": CellType("v100", 2, is_node=True)}
    cells = (PhysicalCell("node", "n0"), PhysicalCell("node", "n1"))
    nodes = {"n0": NodeLimits(cpu=8), "n1": NodeLimits(cpu=8)}
    owners = {"x": Owner((QuotaCells("node", 2),)), "y": Owner()}
    return core_of(ClusterConfig(types, cells, nodes, owners))


def test_a_share_is_told_where_that_is_more_than_the_gpus(limited: Core) -> None:
    runs(limited, "busy", Kind(2))
    runs(limited, "busy too", Kind(1))
    reason = told(limited, wants(Kind(1, cpu=5)), 1.0)
    assert (reason.code, reason.numbers["cellsWanted"], reason.numbers["cellsLeft"]) == (
        "quota",
        2,
        1,
    )
    assert reason.text == f"1 pod with 1 GPU: x has 1 GPU cell {BESIDE}, 2 are needed."


def test_who_finds_gpus_and_not_the_share_that_goes_with_them_lacks_resources(
    limited: Core,
) -> None:
    for number in range(2):
        on = frozenset({f"n{number}"})
        runs(limited, f"busy {number}", Kind(1, cpu=4), on)
    reason = told(limited, wants(Kind(1, cpu=5)), 1.0)
    assert reason.code == "resource"


def test_who_wants_no_gpu_is_told_nothing_of_gpus(limited: Core) -> None:
    limited.request(replace(wants(Kind(cpu=8)), id="first", virtual_cluster="y"))
    limited.request(replace(wants(Kind(cpu=1)), id="second", virtual_cluster="y"))
    limited.cycle(0.0)
    reason = told(limited, replace(wants(Kind(cpu=8), pods=2), virtual_cluster="y"), 1.0)
    assert reason.code == "quota"
    assert reason.text == (
        "2 pods without GPUs: the nodes have not enough CPU, memory, ports or other resources left,"
        f" and y has no GPU cells {BESIDE}, 4 are needed."
    )
    guest = replace(wants(Kind(cpu=8), pods=2), id="guest", priority=-1)
    reason = told(limited, guest, 2.0)
    assert (reason.code, reason.text) == (
        "resource",
        "2 pods without GPUs: no node has 8 CPUs left, the most is 7.",
    )
    on = frozenset({"n0"})
    there = replace(wants(Kind(cpu=8)), id="there", priority=-1, allowed_nodes=on)
    assert told(limited, there, 3.0).text == (
        "1 pod without GPUs: no node has 8 CPUs left, the most is 0."
    )
    small = replace(wants(Kind(cpu=1), pods=8), id="small", virtual_cluster="y", priority=-1)
    assert told(limited, small, 4.0).text == (
        "8 pods without GPUs: the nodes have not enough CPU, memory, ports or other resources left."
    )


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ([Kind(cpu=9)], "No node has 9 CPUs, the most is 8. Ask for less in each task."),
        ([Kind(3)], "No node has 3 GPUs, the most is 2. Ask for less in each task."),
        ([Kind(resources=(("rdma", 1),)), Kind(1)], "No node has rdma. Ask for less"),
        ([Kind(3, cpu=9), Kind(cpu=9)], "has 3 GPUs, the most is 2; none has 9 CPUs, the most is"),
        (
            [Kind(cpu=8)] * 3,
            "healthy and empty. All nodes together have 16 CPUs. Ask for fewer tasks",
        ),
    ],
)
def test_what_no_node_has_is_named(counted: Core, kinds: list[Kind], why: str) -> None:
    reason = told(counted, wants(*kinds), 0.0)
    assert reason.code == "too-large"
    assert why in reason.text, reason.text


@pytest.fixture
def counted() -> Core:
    """Two nodes of two GPUs and eight CPUs each, that count a resource; both are x's."""
    types = {"node": CellType("v100", 2, is_node=True)}
    cells = (PhysicalCell("node", "n0"), PhysicalCell("node", "n1"))
    limits = NodeLimits(cpu=8, resources={"fpga": 1})
    owners = {"x": Owner((QuotaCells("node", 2),))}
    return core_of(ClusterConfig(types, cells, {"n0": limits, "n1": limits}, owners))


@pytest.mark.parametrize(
    ("gang", "code"),
    [
        (replace(ONE, virtual_cluster="z"), "unknown-virtual-cluster"),
        (replace(ONE, roles=(Role(Kind(2, ("h100",)), ("w-0",)),)), "unknown-gpu-type"),
        (replace(ONE, roles=(Role(Kind(2, pin="lob"), ("w-0",)),)), "unknown-pin"),
        (
            replace(ONE, virtual_cluster="y", roles=(Role(Kind(2, pin="lab"), ("w-0",)),)),
            "unknown-pin",
        ),
        (replace(ONE, priority=-1, roles=(Role(Kind(2, pin="lab"), ("w-0",)),)), "pin"),
        (replace(ONE, roles=(Role(Kind(2, ("v100",)), ("w-0", "w-1")),)), "too-large"),
        (replace(ONE, allowed_nodes=frozenset({"k0"})), "too-large"),
        (replace(ONE, virtual_cluster="y"), "too-large"),
    ],
)
def test_what_can_never_be_is_refused_with_what_was_wanted(
    core: Core, gang: Gang, code: str
) -> None:
    reason = told(core, gang, 0.0)
    assert reason.code == code
    pods = sum(len(role.pods) for role in gang.roles)
    assert dict(reason.numbers) == {"pods": pods, "gpus": 2 * pods, "cpu": 0, "memoryMB": 0}


@pytest.mark.parametrize(
    ("gang", "code"),
    [
        (replace(ONE, virtual_cluster="z", priority=-1), "unknown-virtual-cluster"),
        (
            replace(ONE, virtual_cluster="z", roles=(Role(Kind(0), ("w-0",)),)),
            "unknown-virtual-cluster",
        ),
        (replace(ONE, roles=(Role(Kind(1, ("h100",)), ("w-0",)),)), "unknown-gpu-type"),
        (replace(ONE, roles=(Role(Kind(0, pin="lob"), ("w-0",)),)), "unknown-pin"),
        (replace(ONE, priority=-1, roles=(Role(Kind(0, pin="lab"), ("w-0",)),)), "pin"),
    ],
)
@pytest.mark.parametrize("is_settled", [True, False])
def test_who_names_what_there_is_not_gets_nothing_however_much_is_free(
    core: Core, gang: Gang, code: str, is_settled: bool
) -> None:
    """It is refused at once; where not all nodes are known yet, as soon as they are."""
    core.settle(is_settled)
    reason = told(core, gang, 0.0)
    assert reason.code == (code if is_settled else "health")
    if not is_settled:
        core.nodes.set_node_health("n0", False)
        core.nodes.set_node_health("n0", True)
        assert core.cycle(1.0) == []
        core.settle(True)
        (refused,) = core.cycle(2.0)
        assert isinstance(refused, Refused)
        assert refused.reason.code == code


def test_so_it_is_with_what_a_gang_grows_by(core: Core) -> None:
    guest = replace(ONE, priority=-1)
    core.request(guest)
    core.cycle(0.0)
    core.grow("one", (Role(Kind(0, pin="lab"), ("more",)),))
    (refused,) = core.cycle(1.0)
    assert isinstance(refused, Refused)
    assert refused.reason.code == "pin"


@pytest.mark.parametrize(
    ("guest", "text"),
    [
        (Kind(0, cpu=4), "The gang one of x, which is guaranteed, wants CPU, memory, ports or"),
        (Kind(2), "The gang one has a guarantee of x on these GPUs."),
    ],
)
def test_who_has_to_leave_is_told_for_what(guest: Kind, text: str) -> None:
    nodes = {name: NodeLimits(cpu=2) for name in ("n0", "k0", "k1")} | {"c0": NodeLimits(cpu=4)}
    core = core_of(replace(CONFIG, nodes=nodes))
    on = frozenset({"c0"} if guest.cpu else {"n0"})
    wish = replace(ONE, id="guest", virtual_cluster="y", priority=-1, allowed_nodes=on)
    core.request(replace(wish, roles=(Role(guest, ("w-0",)),)))
    core.cycle(0.0)
    cpu = Role(Kind(0, cpu=4), ("c-0",))
    core.request(replace(ONE, roles=(*ONE.roles, cpu) if guest.cpu else ONE.roles))
    (left,) = [each for each in core.cycle(1.0) if isinstance(each, Preempted)]
    assert left.reason.code == "guarantee"
    assert left.reason.text.startswith(text)
    assert left.reason.numbers == {"gpus": guest.gpus}


def test_who_leaves_gpus_to_a_gang_without_gpus_is_told_of_cpu_and_memory(limited: Core) -> None:
    for node in ("n0", "n1"):
        guest = replace(wants(Kind(2, cpu=8)), id=f"guest {node}", virtual_cluster="y", priority=-1)
        limited.request(replace(guest, allowed_nodes=frozenset({node})))
    limited.cycle(0.0)
    limited.request(wants(Kind(cpu=8)))
    (left,) = [each for each in limited.cycle(1.0) if isinstance(each, Preempted)]
    assert (left.reason.code, left.reason.text) == (
        "guarantee",
        "The gang late has a guarantee of x on the CPU and memory that belong to these GPUs.",
    )


@pytest.mark.parametrize(("gpus", "left_out"), [(5, []), (4, ["ends"])])
def test_no_end_helps_a_borrower_larger_than_any_virtual_cluster(
    gpus: int, left_out: list[str]
) -> None:
    types = {"node": CellType("v100", 4, is_node=True)}
    cells = tuple(PhysicalCell("node", f"n{number}") for number in range(3))
    owner = Owner((QuotaCells("node", 1),))
    core = core_of(ClusterConfig(types, cells, {}, {"x": owner, "y": owner, "z": Owner()}))
    for owner in ("x", "y"):
        busy = replace(wants(Kind(4, ("v100",))), id=f"busy {owner}", virtual_cluster=owner)
        core.request(busy)
    core.cycle(0.0)
    roles = (Role(Kind(1), tuple(f"w-{number}" for number in range(gpus))),)
    core.request(replace(ONE, id="large", virtual_cluster="z", roles=roles, is_borrowing=True))
    core.cycle(1.0)
    found = core.questions.counterfactual("large")
    assert found is not None
    assert (found.ends, found.left_out) == (None, left_out)
