"""Where the control groups of pods go under version 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_agent.supervisor import cgroup

ROOT = Path("/sys/fs/cgroup")
MANAGER = ROOT / "user.slice/user-1001.slice/user@1001.service"
SERVICE = MANAGER / "app.slice/agent.service"


def up_to(group: Path) -> list[Path]:
    return [*(folder for folder in reversed(group.parents) if folder.is_relative_to(ROOT)), group]


@pytest.mark.parametrize(
    ("own", "delegated", "place"),
    [
        (SERVICE, up_to(SERVICE), (ROOT / "muster", None)),
        (SERVICE, [MANAGER, SERVICE.parent, SERVICE], (MANAGER / "muster", None)),
        (SERVICE, [SERVICE], (SERVICE / "muster", SERVICE / "muster-agent")),
        (SERVICE / "muster-agent", [SERVICE, SERVICE / "muster-agent"], (SERVICE / "muster", None)),
        (ROOT, [ROOT], (ROOT / "muster", ROOT / "muster-agent")),
        (SERVICE, [], None),
    ],
    ids=["root", "user", "delegated service", "asked again", "container", "nothing delegated"],
)
def test_pods_go_below_the_highest_group_that_the_agent_may_change(
    own: Path, delegated: list[Path], place: object
) -> None:
    assert cgroup.place_for_pods(up_to(own), delegated.__contains__) == place


def test_a_service_manager_can_start_the_agent_again_while_pods_live_on() -> None:
    """It can't where the agent's own group passes controllers on."""
    if not (ROOT / "cgroup.controllers").exists():
        pytest.skip("this machine's control groups are not those of version 2 alone")
    parents = cgroup.usable_parents(cgroup.LIMITS)
    if not parents:
        pytest.skip("this process may make no control groups")
    assert cgroup.usable_parents(cgroup.LIMITS) == parents
    own = Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
    assert (ROOT / own / "cgroup.subtree_control").read_text().split() == []
