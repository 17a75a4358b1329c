"""What virtual clusters are shown to own, and what of it they can use."""

from scenes import Scene, config, gang, owning
from scheduler.domain.core.config import PhysicalCell


def usable(scene: Scene) -> dict[str, tuple[int, int]]:
    """By virtual cluster: what it has left, and what of that can be used."""
    quotas, found = scene.core.cells.quotas(), scene.core.cells.usable()
    return {name: (it.owned - it.charged, found[name]) for name, it in quotas.items()}


def test_quota_is_usable_while_open_nodes_have_room_for_it() -> None:
    cells = (PhysicalCell("node", name="n0"), PhysicalCell("node", name="n1"))
    scene = Scene(config(cells, x=owning(("node", 1)), y=owning(("node", 1))))
    assert usable(scene) == {"x": (4, 4), "y": (4, 4)}
    scene.core.drain("n1")
    assert usable(scene) == {"x": (4, 4), "y": (4, 4)}, "one node is left, for either of them"
    (pod,) = scene.places(gang("g", "x", 1))
    assert pod.node == "n0"
    assert usable(scene) == {"x": (3, 3), "y": (4, 0)}
    scene.core.set_gpu_health("n0", next(it for it in range(4) if it not in pod.gpus), False)
    assert usable(scene) == {"x": (3, 2), "y": (4, 0)}
    scene.core.uncordon("n1")
    assert usable(scene) == {"x": (3, 2), "y": (4, 4)}
    scene.core.cordon("n0")
    assert usable(scene) == {"x": (3, 0), "y": (4, 4)}


def test_a_guest_does_not_make_quota_unusable() -> None:
    """It is preempted once the owner asks."""
    scene = Scene(config((PhysicalCell("node", name="n0"),), x=owning(("node", 1))))
    scene.places(gang("guest", "x", 4, priority=-1))
    assert usable(scene) == {"x": (4, 4)}
