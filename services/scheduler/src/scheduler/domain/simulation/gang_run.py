"""One gang in the simulation: what it wants by now, how far it is, what a preemption costs it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduler.domain.core.holdings import joined
from scheduler.domain.core.model import Gang, Kind, PodPlace, Role
from scheduler.domain.core.saving import saved_s
from scheduler.domain.formats.model import GangFile, Pods


@dataclass(slots=True)
class GangRun:
    """A gang from its request to its end.

    ``run_s``: how long it runs, None: until it is released; ``left_s``: what of that is still to be
    run from its last start on.
    ``started_at`` None: it waits, since ``waits_since``. ``code``: why, as last told. ``counts``:
    pods of each name that there ever were.
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
    def gpus(self) -> int:
        """GPUs that it has."""
        return sum(len(place.gpus) for place in self.places.values())

    @property
    def wanted_gpus(self) -> int:
        """GPUs that it wants, those that it has included."""
        return sum(role.kind.gpus * len(role.pods) for role in self.gang.roles)

    def start(self, now: float, places: Iterable[PodPlace]) -> float | None:
        """It starts; the answer is when it will end, None: when it is released."""
        self.started_at = now
        self.checkpoint_at = None
        self.code = None
        self.add(places)
        ends = [each for each in (self.left_s, self.gang.limit_s) if each is not None]
        return now + min(ends) if ends else None

    def add(self, places: Iterable[PodPlace]) -> None:
        """Pods have started."""
        self.places.update((place.pod, place) for place in places)

    def lost_s(self, now: float) -> float:
        """How long it ran since its last checkpoint."""
        if self.started_at is None:
            return 0.0
        return now - self.started_at - self._saved_s(now)

    def stop(self, now: float) -> None:
        """It is preempted: it waits, and will go on from its last checkpoint."""
        if self.left_s is not None:
            self.left_s = max(0.0, self.left_s - self._saved_s(now))
        self.started_at = None
        self.waits_since = now
        self.places = {}

    def begin_anew(self, now: float) -> None:
        """Nothing of it runs any more, and it goes on wanting pods: they run as long as it wants to
        from its next start on.
        """
        self.stop(now)
        self.left_s = self.run_s

    def _saved_s(self, now: float) -> float:
        """How much of its run since its last start is saved."""
        if self.started_at is None:
            return 0.0
        ran_s = now - self.started_at
        said_s = 0.0 if self.checkpoint_at is None else self.checkpoint_at - self.started_at
        return min(max(said_s, saved_s(ran_s, self.gang.checkpoint_s)), ran_s)

    def more(self, pods: Pods) -> Role:
        """What it wants if it wants these too: counted on from those of the same name."""
        return pods.role(self.counts.get(pods.name, 0))

    def twice(self, more: Role) -> str | None:
        """The first of these pods that it wants already."""
        wanted = {pod for role in self.gang.roles for pod in role.pods}
        return next((pod for pod in more.pods if pod in wanted), None)

    def grow(self, pods: Iterable[Pods], roles: tuple[Role, ...]) -> None:
        """It wants these too; ``roles``: what that is, as `more` says."""
        for more in pods:
            self.counts[more.name] = more.next(self.counts.get(more.name, 0))
            self.kinds[more.name] = more.kind
        self.gang = replace(self.gang, roles=joined(self.gang.roles, roles))

    def remove(self, pod: str) -> PodPlace | None:
        """A pod is over; the answer is where it was, if it ran."""
        roles = (
            replace(role, pods=tuple(each for each in role.pods if each != pod))
            for role in self.gang.roles
        )
        self.gang = replace(self.gang, roles=tuple(role for role in roles if role.pods))
        return self.places.pop(pod, None)

    def without_place(self) -> list[str]:
        """Pods that do not run."""
        return [pod for role in self.gang.roles for pod in role.pods if pod not in self.places]

    def is_last(self, pod: str) -> bool:
        """Whether it wants this pod, and no other one."""
        return self.has(pod) and sum(len(role.pods) for role in self.gang.roles) == 1

    def has(self, pod: str) -> bool:
        """Whether it wants this pod."""
        return any(pod in role.pods for role in self.gang.roles)
