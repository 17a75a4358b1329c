"""The Launcher's peers as plain objects: a Scheduler and the agents of a cluster without hardware.

They keep the exchange's rules about revisions and answer each message by the contracts; a test
chooses what happens, and in which order messages arrive. They note what must never be asked of them
as an AssertionError.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from muster.contracts.gangs import (
    GangDecision,
    GangRequest,
    PodDecision,
    PodDecisionState,
    Preemption,
)
from muster.contracts.model import Reason
from muster.contracts.pods import PodAction, PodRequest, PodState, PodStatus
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.ids import parse_pod


def failure(behavior: Behavior, fault: Fault = Fault.USER, code: int = 255) -> Verdict:
    """A verdict for a pod that failed."""
    return Verdict(
        code=code,
        phrase="Failed",
        rule="failed",
        fault=fault,
        behavior=behavior,
        cause="It failed.",
    )


@dataclass
class FakeScheduler:
    """Decides when a test asks it; ``decisions`` are its newest messages, by gang; ``secrets_keys``
    are those of agents, by node.
    """

    epoch: int = 1
    gangs: dict[str, GangRequest] = field(default_factory=dict)
    decisions: dict[str, GangDecision] = field(default_factory=dict)
    secrets_keys: dict[str, str] = field(default_factory=dict)

    def receive(self, message: GangRequest) -> None:
        """Apply the Launcher's message about a gang."""
        before = self.gangs.get(message.gang)
        if before is not None and message.revision <= before.revision:
            return
        if before is not None and not before.pods:
            assert not message.pods, f"{message.gang} was over and came back"
        self.gangs[message.gang] = message
        kept = self._pods(message.gang)
        self._decide(
            message.gang,
            [kept.get(p.pod, _pod(p.pod, PodDecisionState.WAITING)) for p in message.pods],
        )

    def waiting(self) -> list[str]:
        """The gangs with a pod that waits."""
        return self._with(PodDecisionState.WAITING)

    def placed(self) -> list[str]:
        """The gangs with a pod that has a place."""
        return self._with(PodDecisionState.PLACED)

    def place(self, gang: str, node: str, count: int | None = None) -> GangDecision:
        """Place the waiting pods of the gang on one node; with ``count`` only so many of them, as
        no good Scheduler does.
        """
        pods = self._pods(gang)
        waiting = [n for n, pod in pods.items() if pod.state is PodDecisionState.WAITING]
        gpus = {ask.pod: tuple(range(ask.gpus)) for ask in self.gangs[gang].pods}
        for name in pods:
            if name in waiting[:count]:
                pods[name] = PodDecision(
                    pod=name,
                    state=PodDecisionState.PLACED,
                    node=node,
                    address="127.0.0.1",
                    journal=f"journal-of-{node}",
                    gpus=gpus.get(name, ()),
                    ports={"http": (20000 + len(name),)},
                    secrets_key=self.secrets_keys.get(node)
                    if self.gangs[gang].needs_keys
                    else None,
                )
        return self._decide(gang, pods.values())

    def defer(self, gang: str, text: str) -> GangDecision:
        """The gang waits, for this reason."""
        return self._decide(
            gang, self._pods(gang).values(), reason=Reason(code="no-room", text=text)
        )

    def refuse(self, gang: str, code: str = "too-large") -> GangDecision:
        """The gang can never run."""
        pods = [_pod(name, PodDecisionState.REFUSED) for name in self._pods(gang)]
        return self._decide(gang, pods, reason=Reason(code=code, text="It is too large."))

    def preempt(
        self,
        gang: str,
        until: datetime,
        preemptor: str | None = "other-0",
        only: Collection[str] | None = None,
    ) -> GangDecision:
        """Others are to have what the gang holds, or ``only`` these pods; None: nobody, its node is
        drained.
        """
        pods = [
            pod.model_copy(update={"state": PodDecisionState.PREEMPTED})
            if pod.state is PodDecisionState.PLACED and (only is None or pod.pod in only)
            else pod
            for pod in self._pods(gang).values()
        ]
        preemption = Preemption(
            gang=preemptor,
            until=until,
            reason=Reason(code="preempted", text=f"For {preemptor}.")
            if preemptor
            else Reason(code="drained", text="Its node is drained."),
        )
        return self._decide(gang, pods, preemption=preemption)

    def surplus(self, gang: str) -> list[str]:
        """Pods that have a place and that the gang can do without."""
        asks = {ask.pod for ask in self.gangs[gang].pods if ask.surplus}
        placed = PodDecisionState.PLACED
        return [n for n, pod in self._pods(gang).items() if pod.state is placed and n in asks]

    def lose(self, node: str) -> list[GangDecision]:
        """The lease of a node ran out: every pod placed there is lost, for good."""
        published = []
        for gang in list(self.decisions):
            pods = self._pods(gang)
            lost = [n for n, p in pods.items() if p.node == node and p.state not in _GONE]
            for name in lost:
                pods[name] = pods[name].model_copy(update={"state": PodDecisionState.LOST})
            if lost:
                published.append(self._decide(gang, pods.values()))
        return published

    def _with(self, state: PodDecisionState) -> list[str]:
        return [
            g
            for g, message in self.decisions.items()
            if any(p.state is state for p in message.pods)
        ]

    def _pods(self, gang: str) -> dict[str, PodDecision]:
        message = self.decisions.get(gang)
        return {pod.pod: pod for pod in message.pods} if message else {}

    def _decide(
        self,
        gang: str,
        pods: Iterable[PodDecision],
        reason: Reason | None = None,
        preemption: Preemption | None = None,
    ) -> GangDecision:
        before = self.decisions.get(gang)
        pods = tuple(pods)
        if before is not None and any(pod.state is PodDecisionState.PREEMPTED for pod in pods):
            preemption = preemption or before.preemption
        message = GangDecision(
            revision=before.revision + 1 if before else 1,
            seen=self.gangs[gang].revision,
            gang=gang,
            job=self.gangs[gang].job,
            epoch=self.epoch,
            pods=pods,
            reason=reason,
            preemption=preemption,
        )
        self.decisions[gang] = message
        return message


_GONE = (PodDecisionState.LOST, PodDecisionState.REFUSED)


def _pod(name: str, state: PodDecisionState) -> PodDecision:
    return PodDecision(pod=name, state=state)


@dataclass
class FakeAgents:
    """The agents of all nodes; ``statuses`` are their newest messages, by pod.

    ``stopping``: live pods that were asked to stop. ``forgotten``: names that never come back.
    """

    statuses: dict[str, PodStatus] = field(default_factory=dict)
    requests: dict[str, PodRequest] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)

    def receive(self, message: PodRequest, now: datetime) -> None:
        """Apply the Launcher's message about a pod."""
        before = self.requests.get(message.pod)
        if before is not None and message.revision <= before.revision:
            return
        self.requests[message.pod] = message
        is_known = message.pod in self.statuses
        match message.action:
            case PodAction.RUN:
                assert message.pod not in self.forgotten, f"{message.pod} came back"
                if not is_known:
                    self._publish(message.pod, PodState.ACCEPTED)
            case PodAction.STOP if is_known:
                if message.pod in self.live():
                    self.stopping.add(message.pod)
            case PodAction.STOP:
                self.end(message.pod, now, never_ran())
            case PodAction.FORGET:
                assert message.pod not in self.live(), (
                    f"{message.pod} lives and was to be forgotten"
                )
                self.forgotten.add(message.pod)
                if not is_known:
                    self.end(message.pod, now, never_ran())
            case PodAction.UNKNOWN:
                raise AssertionError("the Launcher asked for nothing")

    def live(self) -> list[str]:
        """The pods that were accepted and have not ended."""
        return [
            pod
            for pod, message in self.statuses.items()
            if message.state in (PodState.ACCEPTED, PodState.RUNNING)
        ]

    def start(self, pod: str, now: datetime) -> PodStatus:
        """The pod's process runs."""
        return self._publish(pod, PodState.RUNNING, started_at=now)

    def hold_up(self, pod: str, reason: Reason | None) -> PodStatus:
        """The pod does not run yet."""
        return self._publish(pod, PodState.ACCEPTED, reason=reason)

    def end(self, pod: str, now: datetime, verdict: Verdict | None = None) -> PodStatus:
        """The pod ended: well, or with a verdict."""
        self.stopping.discard(pod)
        if verdict is None:
            return self._publish(pod, PodState.SUCCEEDED, ended_at=now, exit_code=0)
        return self._publish(
            pod, PodState.FAILED, ended_at=now, exit_code=max(0, verdict.code), verdict=verdict
        )

    def _publish(self, pod: str, state: PodState, **changes: object) -> PodStatus:
        before = self.statuses.get(pod)
        request = self.requests[pod]
        values = {
            "pod": pod,
            "job": parse_pod(pod).job,
            "gang": request.gang,
            "node": request.node,
            "journal": request.journal,
            "boot": "boot-1",
            "started_at": before.started_at if before else None,
            **changes,
            "state": state,
            "revision": before.revision + 1 if before else 1,
            "seen": request.revision,
        }
        message = PodStatus.model_validate(values)
        self.statuses[pod] = message
        return message


def never_ran() -> Verdict:
    """An agent's verdict on a pod that it knows only to be over."""
    return failure(Behavior.TRANSIENT, Fault.STOP, -1016)


def stopped() -> Verdict:
    """An agent's verdict on a pod that it stopped when asked."""
    return failure(Behavior.PERMANENT, Fault.STOP, -210)
