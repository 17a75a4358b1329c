"""A roll-out that does not become ready says why."""

import json
from collections.abc import Sequence

import pytest
from cli.client import CommandError, Exit
from cli.deploy.applying import Waiting, roll_out
from cli.deploy.kubectl import Kubectl
from cli.deploy.rollout import Step
from manifests import Json

POD = {"kind": "Pod", "metadata": {"name": "rest-1"}, "status": {"phase": "Pending"}}
READY = {
    "kind": "Pod",
    "metadata": {"name": "rest-0"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}
REST: Json = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "rest"}}
LACKS = 'MountVolume.SetUp failed for volume "authorities": configmap "authorities" not found'


def an_event(pod: str, at: str, message: str) -> Json:
    return {"involvedObject": {"name": pod}, "lastTimestamp": at, "message": message}


EVENTS = [
    an_event("rest-1", "2026-01-01T00:00:02Z", LACKS),
    an_event("rest-1", "2026-01-01T00:00:01Z", "earlier"),
    {  # as Kubernetes' scheduler writes them
        "involvedObject": {"name": "rest-1"},
        "lastTimestamp": None,
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "message": "0/1 nodes are available",
    },
    an_event("rest-0", "2026-01-01T00:00:03Z", "of a pod that is ready by now"),
    an_event("launcher-1", "2026-01-01T00:00:03Z", "of another part"),
]


class Stuck(Kubectl):
    """A cluster in which no pod of REST starts."""

    def __init__(self, status: Json) -> None:
        self._pods = [POD | {"status": POD["status"] | status}, READY]

    def run(self, *words: str, objects: Sequence[Json] | None = None) -> str:
        found = {"pods": self._pods, "events": EVENTS, "Deployment": [REST]}
        items = found[words[1]] if words[0] == "get" else []
        return json.dumps({"kind": "List", "items": items})


WAITS = {"name": "rest", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
CREATES = {"name": "rest", "state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"containerStatuses": [CREATES]}, f"Pod rest-1: {LACKS}"),
        ({"containerStatuses": [WAITS]}, "Pod rest-1, container rest: ErrImagePull: no"),
    ],
)
def test_a_part_that_does_not_start_gives_its_pods_reason_or_their_last_warning(
    status: Json, why: str
) -> None:
    waiting = Waiting(0, lambda _text: None, "Then apply again.")
    with pytest.raises(CommandError, match="did not become ready") as failed:
        roll_out(Stuck(status), [Step("rest", [REST])], waiting)
    assert (failed.value.code, failed.value.details) == (Exit.NOT_ALL_READY, (why,))
