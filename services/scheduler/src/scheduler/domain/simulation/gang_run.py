"""One gang in the simulation: its request, its progress, and the costs of a preemption."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from scheduler.domain.core.ends import saved_s
from scheduler.domain.core.model import Gang, Kind, PodPlace, Role, joined, without
from scheduler.domain.formats.model import GangFile, Pods


@dataclass(slots=True)
class GangRun:
    """A gang from its request to its end.

    ``run_s``: its run time, None: until it is released; ``left_s``: the rest of that from its last
    start on; ``done_s``: of that up to ``paced_at``, as if with all its pods; ``saved_s``: of that,
    at its last checkpoint event. ``started_at`` None: it waits, since ``waits_since``.
    ``code``: its last published wait reason. ``counts``: pods of each name there ever were.
    """

    gang: Gang
    run_s: float | None
    waits_since: float
    left_s: float | None
    counts: dict[str, int]
    kinds: dict[str, Kind]
    started_at: float | None = None
    checkpoint_at: float | None = None
    code: str | None = None
    places: dict[str, PodPlace] = field(default_factory=dict)
    wait: int | None = None
    done_s: float = 0.0
    paced_at: float = 0.0
    saved_s: float = 0.0

    @classmethod
    def of(cls, file: GangFile, now: float) -> "GangRun":
        """A gang that is requested now."""
        return cls(
            gang=file.gang,
            run_s=file.run_s,
            waits_since=now,
            left_s=file.run_s,
            counts={pods.name: pods.next() for pods in file.pods},
            kinds={pods.name: pods.kind for pods in file.pods},
        )

    @property
    def wanted_gpus(self) -> int:
        """The GPUs of its request, those that it has included."""
        return sum(role.kind.gpus * len(role.pods) for role in self.gang.roles)

    def start(self, now: float, places: Iterable[PodPlace]) -> None:
        """It starts."""
        self.started_at = self.paced_at = now
        self.checkpoint_at = None
        self.code = None
        self.done_s = 0.0
        self.places.update((place.pod, place) for place in places)

    def add(self, now: float, places: Iterable[PodPlace]) -> None:
        """Pods have started beside others."""
        self._pace(now)
        self.places.update((place.pod, place) for place in places)

    def shrink(self, now: float, pod: str) -> PodPlace:
        """It continues without a pod, which it still requests."""
        self._pace(now)
        return self.places.pop(pod)

    def ends_at(self, *, is_limited: bool) -> float | None:
        """When it will end at its present pace, None: when it is released. It runs for its time
        with all its pods; without some elastic ones for longer, in proportion. ``is_limited``: and
        not beyond its limit.
        """
        assert self.started_at is not None
        ends: list[float] = []
        if self.left_s is not None and (speed := self._speed()):
            ends.append(self.paced_at + (self.left_s - self.done_s) / speed)
        if is_limited and self.gang.limit_s is not None:
            ends.append(self.started_at + self.gang.limit_s)
        return min(ends, default=None)

    def _pace(self, now: float) -> None:
        """Its pace changes now."""
        if self.started_at is not None:
            self.done_s, self.paced_at = self.ran_s(now), now

    def ran_s(self, now: float) -> float:
        """Its run time since its last start, as if with all its pods."""
        return self.done_s + (now - self.paced_at) * self._speed()

    def _speed(self) -> float:
        if all(role.least is None for role in self.gang.roles):
            return 1.0
        return len(self.places) / sum(len(role.pods) for role in self.gang.roles)

    def lost_s(self, now: float) -> float:
        """Its run time since its last checkpoint."""
        if self.started_at is None:
            return 0.0
        return self.ran_s(now) - self._saved_s(now)

    def checkpoint(self, now: float) -> None:
        """Its work up to now is saved."""
        self.checkpoint_at = now
        if self.started_at is not None:
            self.saved_s = self.ran_s(now)

    def stop(self, now: float) -> None:
        """It is preempted: it waits, and will continue from its last checkpoint."""
        if self.left_s is not None:
            self.left_s = max(0.0, self.left_s - self._saved_s(now))
        self.started_at = None
        self.waits_since = now
        self.places = {}

    def begin_anew(self, now: float) -> None:
        """No pod of it runs any more, and it still requests pods: they run for its full run time
        from its next start on.
        """
        self.stop(now)
        self.left_s = self.run_s

    def _saved_s(self, now: float) -> float:
        """How much of its run since its last start is saved."""
        if self.started_at is None:
            return 0.0
        ran_s = self.ran_s(now)
        noted_s = 0.0 if self.checkpoint_at is None else self.saved_s
        return min(max(noted_s, saved_s(ran_s, self.gang.checkpoint_s)), ran_s)

    def more(self, pods: Pods) -> Role:
        """Its request with these pods added: counted on from those of the same name."""
        return pods.role(self.counts.get(pods.name, 0))

    def twice(self, more: Role, taken: Collection[str]) -> str | None:
        """The first of these pods that it requests already, or that is ``taken``."""
        wanted = {pod for role in self.gang.roles for pod in role.pods}.union(taken)
        return next((pod for pod in more.pods if pod in wanted), None)

    def grow(self, pods: Iterable[Pods], roles: tuple[Role, ...]) -> None:
        """It requests these pods too; ``roles``: the result of `more`."""
        for more in pods:
            self.counts[more.name] = more.next(self.counts.get(more.name, 0))
            self.kinds[more.name] = more.kind
        self.gang = replace(self.gang, roles=joined(self.gang.roles, roles))

    def remove(self, pod: str) -> PodPlace | None:
        """A pod is over; returns its place, if it ran. It goes on to need one of the others."""
        roles = without(self.gang.roles, (pod,))
        if roles and all(role.least == 0 for role in roles):
            roles = (replace(roles[0], least=1), *roles[1:])
        self.gang = replace(self.gang, roles=roles)
        return self.places.pop(pod, None)

    def without_place(self) -> list[str]:
        """Pods that do not run."""
        return [pod for role in self.gang.roles for pod in role.pods if pod not in self.places]

    def is_last(self, pod: str) -> bool:
        """Whether it requests this pod alone."""
        return self.has(pod) and sum(len(role.pods) for role in self.gang.roles) == 1

    def has(self, pod: str) -> bool:
        """Whether it requests this pod."""
        return any(pod in role.pods for role in self.gang.roles)
