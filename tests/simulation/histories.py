"""Seeded random histories of a cluster, run through a core's door and followed by the oracle.

`history` makes one from a seed, `replay` runs one that is written out. The same seed is the same
history as long as the core decides the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from random_changes import a_change
from random_clusters import EVERYTHING, Traits, a_cluster, a_gang
from runs import Event, Maker, Run, Watch
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision

CYCLES = 14


@dataclass(frozen=True)
class History:
    """What happened, and what was wrong with it. ``judges``: what was asked of the oracle.
    ``judged``: what it would have done otherwise, and the core does not promise. ``compared``,
    ``too_hard``: questions about gangs that were put to it, and those that it gave up.
    """

    seed: int
    config: ClusterConfig
    judges: str
    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]
    problems: tuple[str, ...]
    judged: tuple[str, ...] = ()
    compared: int = 0
    too_hard: int = 0


def history(
    seed: int,
    make: Maker,
    traits: Traits = EVERYTHING,
    cycles: int = CYCLES,
    watch: Watch | None = None,
) -> History:
    """The history of this seed, up to the first cycle that is wrong."""
    random = Random(seed)
    config = a_cluster(random, traits)
    run = Run(make, config, traits.judges)
    dice = _Dice(random, run, traits)
    for number in range(cycles):
        for _ in range(random.randrange(1, 5)):
            dice.throw(number * 10.0)
        run.apply(("cycle", number * 10.0))
        if watch is not None:
            watch(run)
        if run.problems:
            break
        if random.random() < traits.restarts:
            run.apply(("restart",))
    return _done(seed, config, traits.judges, run)


def replay(
    config: ClusterConfig, events: Sequence[Event], make: Maker, judges: str = "all"
) -> History:
    """The same events once more."""
    run = Run(make, config, judges)
    for event in events:
        run.apply(event)
        if run.problems:
            break
    return _done(-1, config, judges, run)


def _done(seed: int, config: ClusterConfig, judges: str, run: Run) -> History:
    follower = run.follower
    return History(
        seed,
        config,
        judges,
        tuple(run.events),
        tuple(run.decisions),
        tuple(run.problems),
        tuple(follower.judged),
        follower.compared,
        follower.too_hard,
    )


class _Dice:
    """Throws events that make sense at this moment."""

    def __init__(self, random: Random, run: Run, traits: Traits) -> None:
        self._random = random
        self._traits = traits
        self._run = run
        self._count = 0

    def throw(self, now: float) -> None:
        """One thing happens."""
        kinds = (
            ("request", 46), ("release", 16), ("release_pod", 3), ("withdraw", 3), ("grow", 3),
            ("checkpoint", 6), ("node", 6), ("gpu", 5), ("cordon", 2), ("drain", 2),
            ("uncordon", 5), ("change", self._traits.changes),
        )  # fmt: skip
        out = () if self._traits.has_faults else ("node", "gpu", "cordon", "drain")
        names, weights = zip(*(kind for kind in kinds if kind[0] not in out), strict=True)
        event = getattr(self, f"_{self._random.choices(names, weights)[0]}")(now)
        if event is not None:
            self._run.apply(event)

    def _request(self, now: float) -> Event:
        self._count += 1
        name = f"g{self._count}"
        hardware = self._run.state.hardware
        share = self._traits.without_gpus
        return ("request", a_gang(self._random, hardware, name, now, share))

    def _running(self) -> list[str]:
        records = self._run.state.records
        return [name for name, record in records.items() if not record.is_reserved]

    def _pick(self, names: Sequence[str]) -> str | None:
        return self._random.choice(sorted(names)) if names else None

    def _release(self, now: float) -> Event | None:
        name = self._pick([n for n in self._run.state.records if not n.endswith("+")])
        return None if name is None else ("release", name)

    def _withdraw(self, now: float) -> Event | None:
        records = self._run.state.records
        reserved = [n for n, r in records.items() if r.is_reserved and not n.endswith("+")]
        name = self._pick([*self._run.state.waiting, *reserved])
        return None if name is None else ("withdraw", name)

    def _release_pod(self, now: float) -> Event | None:
        name = self._pick(self._running())
        if name is None:
            return None
        return ("release_pod", name, self._pick(list(self._run.state.records[name].places)))

    def _grow(self, now: float) -> Event | None:
        name = self._pick(self._running())
        if name is None or not self._traits.has_growth:
            return None
        role = self._random.choice(self._run.state.records[name].gang.roles)
        return ("grow", name, (replace(role, pods=(f"more-{len(self._run.events)}",)),))

    def _checkpoint(self, now: float) -> Event | None:
        name = self._pick(self._running())
        return None if name is None else ("checkpoint", name)

    def _node(self, now: float) -> Event:
        bad = sorted(self._run.state.bad_nodes)
        if bad and self._random.random() < 0.6:
            return ("node", self._random.choice(bad), True)
        return ("node", self._random.choice(self._run.state.hardware.machines), False)

    def _gpu(self, now: float) -> Event:
        bad = sorted(self._run.state.bad_gpus)
        if bad and self._random.random() < 0.6:
            return ("gpu", *self._random.choice(bad), True)
        leaf = self._random.choice(sorted(self._run.state.hardware.leaf_at))
        return ("gpu", *leaf, False)

    def _cordon(self, now: float) -> Event:
        return ("cordon", self._random.choice(self._run.state.hardware.machines))

    def _drain(self, now: float) -> Event:
        return ("drain", self._random.choice(self._run.state.hardware.machines))

    def _uncordon(self, now: float) -> Event | None:
        name = self._pick([*self._run.state.cordoned, *self._run.state.drained])
        return None if name is None else ("uncordon", name)

    def _change(self, now: float) -> Event | None:
        return ("change", a_change(self._random, self._run.config, self._traits))
