"""Which configuration the cluster is made of as the file, what is set, and the nodes change: the
newest that can be honoured.
"""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from scheduler.cluster_file import Loaded
from scheduler.configuring import Configuring
from scheduler.domain.configured import Setting
from scheduler.domain.core.config import Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.rules import Rules
from scheduler.domain.stored import Stored
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings

Kit = Any
NODE = "t-2"


def owning(revision: int, **nodes: int) -> Setting:
    """So many nodes of each virtual cluster."""
    cells = {name: {"cells": [{"type": NODE, "count": n}]} for name, n in nodes.items()}
    return Setting(revision, revision, {"virtualClusters": cells})


def file_of(*names: str) -> Loaded:
    """A file with these nodes, all of one virtual cluster."""
    cells = "".join(f"  - {{type: {NODE}, name: {name}}}\n" for name in names)
    text = (
        f"cellTypes: {{{NODE}: {{child: t, count: 2, node: true}}}}\n"
        f"physicalCells:\n{cells}"
        f"virtualClusters: {{filed: {{cells: [{{type: {NODE}, count: {len(names)}}}]}}}}\n"
    )
    return Loaded(text.encode(), read_cluster(text.encode()).config, ())


class World:
    """A state, what it is to be made of, and nodes that come."""

    def __init__(self, kit: Kit, *nodes: str, file: Loaded | None = None) -> None:
        self.kit = kit
        self.state = Stored(Rules(settle_s=0.0))
        self.metrics = SchedulerMetrics(CollectorRegistry())
        self.configuring = Configuring(SchedulerSettings(remake_share=1.0), self.metrics, file)
        self.configuring.begin(self.state)
        self.come(*nodes)

    def come(self, *nodes: str) -> None:
        for name in nodes:
            self.state.report(self.kit.report(name, gpus=2), 0.0)
            self.state.ledger.receive(name, f"journal-of-{name}", 0.0)

    async def remake(self, received: Setting | None = None) -> dict[str, int]:
        """GPUs that each virtual cluster owns afterwards."""
        self.configuring._remake_from = 0.0
        await self.configuring.remake(self.state, received, lambda: 1.0)
        forest = self.state.core.forest
        return {
            name: sum(2 * quota.count for quota in quotas) for name, quotas in forest.quotas.items()
        }

    @property
    def version(self) -> int | None:
        setting = self.state.made_of.setting
        return None if setting is None else setting.version

    @property
    def machines(self) -> int:
        return len(self.state.core.forest.machines)


@pytest.fixture
def world(kit: Kit) -> World:
    return World(kit, "n0", "n1")


async def test_what_is_refused_is_tried_again_as_nodes_come(world: World) -> None:
    assert await world.remake() == {"default": 4}
    assert await world.remake(owning(1, speech=2)) == {"speech": 4}
    assert await world.remake(owning(2, speech=4)) == {"speech": 4}
    assert (world.version, world.metrics.config_behind._value.get()) == (1, 1)
    assert world.configuring.problems[0].path == "virtualClusters.speech.cells[0].count"
    world.come("n2")
    assert await world.remake() == {"speech": 4}, "of the one before with the node that is new"
    assert (world.version, world.machines) == (1, 3)
    assert not world.state.is_outdated
    world.come("n3")
    assert await world.remake() == {"speech": 8}
    assert (world.version, world.metrics.config_behind._value.get()) == (2, 0)
    assert world.configuring.problems == ()
    assert world.metrics.config_version._value.get() == 2


async def test_the_same_again_is_not_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.remake(owning(1, speech=2))
    cluster = world.state.core
    await world.remake(owning(1, speech=2))
    assert world.state.core is cluster
    await world.remake(owning(2, speech=9))
    monkeypatch.setattr(type(world.state), "plan", None)
    await world.remake(owning(2, speech=9))
    assert world.state.core is cluster


async def test_what_is_set_holds_over_another_file_unless_that_cannot_honour_it(kit: Kit) -> None:
    world = World(kit, file=file_of("n0", "n1"))
    assert await world.remake(owning(1, speech=2)) == {"speech": 4}
    world.configuring.file = file_of("n0", "n1", "n2")
    assert await world.remake() == {"speech": 4}
    assert world.machines == 3
    world.configuring.file = file_of("n0")
    assert await world.remake() == {"speech": 4}
    assert (world.machines, world.metrics.config_behind._value.get()) == (3, 1)
    assert await world.remake(Setting(2)) == {"filed": 2}
    assert (world.machines, world.metrics.config_behind._value.get()) == (1, 0)


async def test_what_was_left_out_at_a_start_stays_so_until_it_can_be_honoured(kit: Kit) -> None:
    world = World(kit, "n0")
    world.configuring.stored = owning(1, speech=3)
    error = ConfigError([Finding("virtualClusters.speech.cells[0].count", "is too much")])
    await world.configuring.make_without(world.state, 0.0, error)
    world.configuring.begin(world.state)
    assert world.metrics.config_behind._value.get() == 1
    assert not world.state.is_settled(1e9)
    world.come("n1")
    assert await world.remake() == {"default": 4}, "the nodes that come are used all the same"
    assert (world.state.made_of.is_honoured, world.version) == (False, 1)
    assert not world.configuring.is_unsaved(world.state)
    world.come("n2")
    assert await world.remake() == {"speech": 6}
    assert world.state.made_of.is_honoured
    assert world.state.is_settled(1e9)
    world.configuring.stored = Setting(5)
    with pytest.raises(ConfigError):
        await world.configuring.make_without(world.state, 0.0, error)
