"""A roll-out that does not become ready says why."""

import json
from collections.abc import Sequence

import pytest
from cli.client import CommandError, Exit
from cli.deploy.applying import Waiting, let_in, roll_out
from cli.deploy.kubectl import Kubectl
from cli.deploy.rollout import Step, refusals
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
    """A cluster in which no pod of REST starts, or none can be made."""

    def __init__(self, status: Json | None, events: Sequence[Json] = EVENTS) -> None:
        self._pods = [] if status is None else [POD | {"status": POD["status"] | status}, READY]
        self._events = events

    def run(self, *words: str, objects: Sequence[Json] | None = None) -> str:
        found = {"pods": self._pods, "events": self._events, "Deployment": [REST]}
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


class Restarting(Kubectl):
    """A cluster with this object, whose API server is away when the first questions come."""

    def __init__(self, failures: int, code: Exit, body: Json) -> None:
        self.failures, self._code, self._body = failures, code, body

    def run(self, *words: str, objects: Sequence[Json] | None = None) -> str:
        if words[0] == "get" and self.failures:
            self.failures -= 1
            raise CommandError(self._code, "kubectl get: no answer")
        return json.dumps({"kind": "List", "items": [self._body]})


AWAY, UP = Exit.UNREACHABLE, REST | {"status": {"readyReplicas": 1, "updatedReplicas": 1}}


def test_a_roll_out_goes_on_once_the_api_server_is_back() -> None:
    shown: list[str] = []
    step, waiting = Step("rest", [REST]), Waiting(60, shown.append, "Then apply again.")
    roll_out(Restarting(2, AWAY, UP), [step], waiting)
    assert shown == [
        "Deployment rest: the API server does not answer",
        "Deployment rest: 1 of 1 ready",
    ]
    with pytest.raises(CommandError, match="no answer"):
        roll_out(Restarting(1, Exit.REFUSED, UP), [step], waiting)
    with pytest.raises(CommandError, match="no answer"):
        roll_out(Restarting(9, AWAY, UP), [step], Waiting(0, shown.append, ""))


def test_a_node_is_let_in_once_the_api_server_is_back() -> None:
    shown: list[str] = []
    waiting, agent = Waiting(60, shown.append, ""), READY | {"spec": {"nodeName": "gpu-1"}}
    let_in(Restarting(2, AWAY, agent), ["gpu-1"], Step("bus", []), waiting)
    assert shown == ["Waiting for 1: the API server, which does not answer"]
    with pytest.raises(CommandError, match="no answer"):
        let_in(Restarting(1, Exit.REFUSED, agent), ["gpu-1"], Step("bus", []), waiting)


FORBIDDEN = 'pods "rest-5d9f-" is forbidden: exceeded quota: small'


def refused(maker: str, kind: str, at: str) -> Json:
    return {
        "involvedObject": {"kind": kind, "name": maker},
        "reason": "FailedCreate",
        "lastTimestamp": at,
        "message": FORBIDDEN,
    }


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (
            refused("rest-5d9f", "ReplicaSet", "2026-01-01T00:00:05Z"),
            [f"ReplicaSet rest: {FORBIDDEN}"],
        ),
        (refused("runtime-agent", "DaemonSet", "2026-01-01T00:00:05Z"), []),  # ready by now
        (refused("rest-5d9f", "ReplicaSet", "2026-01-01T00:00:03Z"), []),  # a pod was made since
        (an_event("rest-5d9f", "2026-01-01T00:00:05Z", "of something else"), []),
    ],
)
def test_pods_that_kubernetes_can_not_make_are_told(event: Json, found: list[str]) -> None:
    made: Json = {
        "metadata": {
            "name": "rest-5d9f-0",
            "labels": {"app.kubernetes.io/name": "rest"},
            "creationTimestamp": "2026-01-01T00:00:04Z",
        }
    }
    assert refusals(["rest"], [made], [event]) == found


def test_a_part_without_pods_gives_the_reason() -> None:
    waiting = Waiting(0, lambda _text: None, "Then apply again.")
    event = refused("rest-5d9f", "ReplicaSet", "2026-01-01T00:00:05Z")
    with pytest.raises(CommandError, match=r"More: .* describe deployment/rest\.") as failed:
        roll_out(Stuck(None, [event]), [Step("rest", [REST])], waiting)
    assert failed.value.details == (f"ReplicaSet rest: {FORBIDDEN}",)
