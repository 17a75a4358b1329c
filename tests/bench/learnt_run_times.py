"""How good learnt run times are, on a stream of jobs drawn by a seed: `make experiment-run-times`.

What is assumed of people is written in `Project`: they run the same again under numbered names,
first fail early a few times, stop some runs, and change what they run every few days.
"""

import argparse
import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, median

from scheduler.domain import run_times
from scheduler.domain.run_times import Bounds, Key, Run, RunTimes, pattern_of, quantile

DAY_S = 86_400.0
USERS = 60
DAYS = 40
WARM_DAYS = 10
"""From then on it is measured."""

SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"
ALL = frozenset((SUCCEEDED, FAILED, STOPPED))
COUNTED = ALL - {FAILED}
_Q = (0.5, 0.75, 0.9, 1.0)
WINDOWS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that starts at ``at`` and holds its place for some time."""

    at: float
    key: Key
    seconds: int
    end: str


@dataclass(slots=True)
class Project:
    """What somebody runs again and again: every few days something else about it, under another
    name or with other GPUs, and with a few runs that fail at once before it goes. Interactive ones
    are only ever stopped.
    """

    user: str
    stem: str
    gpus: int
    base_s: float
    sigma: float
    is_interactive: bool
    burst: int

    def jobs(self, rng: random.Random) -> Iterator[Job]:
        """All of it, roughly in order of time."""
        at, number = rng.uniform(0, 4 * DAY_S), 0
        while at < DAYS * DAY_S:
            self.base_s *= rng.lognormvariate(0, 0.4)
            if rng.random() < 0.1:
                self.gpus = rng.choice(_GPUS)
            stem = self.stem if rng.random() < 0.6 else f"{self.stem}-{rng.choice(_WORDS)}"
            if rng.random() < 0.15:
                stem = f"{rng.choice(_WORDS)}-{rng.choice(_WORDS)}"
            for _ in range(int(rng.expovariate(1 / 2))):
                number += 1
                yield self._job(at, stem, number, self.base_s * rng.uniform(0, 0.05), FAILED)
                at += rng.expovariate(1 / 1200)
            for _ in range(int(rng.expovariate(1 / 8)) + 1):
                for _ in range(self.burst):
                    number += 1
                    yield self._run(at, stem, number, rng)
                at += rng.expovariate(1 / (0.3 * DAY_S))
            at += rng.expovariate(1 / (2 * DAY_S))

    def _run(self, at: float, stem: str, number: int, rng: random.Random) -> Job:
        whole, share = self.base_s * rng.lognormvariate(0, self.sigma), rng.random()
        if self.is_interactive:
            return self._job(at, stem, number, whole, STOPPED)
        if share < 0.1:
            return self._job(at, stem, number, whole * rng.random(), FAILED)
        if share < 0.25:
            return self._job(at, stem, number, whole * rng.random(), STOPPED)
        return self._job(at, stem, number, whole, SUCCEEDED)

    def _job(self, at: float, stem: str, number: int, seconds: float, end: str) -> Job:
        key = Key(self.user, pattern_of(f"{stem}-{number}"), str(self.gpus))
        return Job(at, key, min(max(int(seconds), 1), 7 * 86_400), end)


_WORDS = ("small", "large", "fixed", "again", "wide", "noaug", "final", "fp8", "long")
_GPUS = (1, 1, 1, 2, 4, 8, 8, 16, 32)


def jobs(seed: int) -> list[Job]:
    """All jobs in order of time."""
    rng = random.Random(seed)
    found: list[Job] = []
    for user in range(USERS):
        for stem in range(rng.randint(1, 5)):
            is_interactive = rng.random() < 0.15
            project = Project(
                user=f"user-{user}",
                stem="notebook" if is_interactive else f"project-{'abcdefg'[stem]}",
                gpus=rng.choice(_GPUS),
                base_s=rng.lognormvariate(9, 1.3),
                sigma=1.0 if is_interactive else rng.uniform(0.1, 0.6),
                is_interactive=is_interactive,
                burst=rng.choice((1, 1, 1, 1, 1, 8)),
            )
            found += project.jobs(rng)
    return sorted(found, key=lambda job: (job.at, job.key, job.seconds))


@dataclass(frozen=True, slots=True)
class Guess:
    """What was expected of a job; None: nothing. ``level``: by what runs had in common with it."""

    job: Job
    seconds: float | None
    level: str


Guessing = Callable[[RunTimes, Key], tuple[float | None, str]]


def guesses(
    found: Iterable[Job], guess: Guessing, counted: frozenset[str], bounds: Bounds
) -> list[Guess]:
    """What would have been expected of each job when it began."""
    known = RunTimes(bounds)
    running: list[tuple[float, int, Job]] = []
    answers = []
    for number, job in enumerate(found):
        while running and running[0][0] <= job.at:
            ended_at, _, ended = heapq.heappop(running)
            if ended.end in counted:
                known.note([Run(ended.key, ended_at, ended.seconds)])
        if job.at >= WARM_DAYS * DAY_S:
            answers.append(Guess(job, *guess(known, job.key)))
        heapq.heappush(running, (job.at + job.seconds, number, job))
    return answers


def at_quantile(share: float) -> Guessing:
    """This quantile of what is known."""

    def guess(known: RunTimes, key: Key) -> tuple[float | None, str]:
        for level in run_times.LEVELS:
            window = known.window(key, level)
            if len(window) >= level.least:
                return quantile(window, share), level.name
        return None, "none"

    return guess


def last_two(known: RunTimes, key: Key) -> tuple[float | None, str]:
    """The mean of the user's last two runs, whatever they were."""
    window = known.window(key, run_times.LEVELS[-1])
    found = [
        entry
        for other, history in known.histories.items()
        if other.user == key.user
        for entry in zip(*history, strict=True)
    ]
    if len(window) < 2:
        return None, "none"
    return fmean(seconds for _, seconds in sorted(found)[-2:]), "user"


def line(name: str, answers: list[Guess]) -> str:
    """How good they were."""
    known = [(each.seconds, each.job) for each in answers if each.seconds is not None]
    good = [(seconds, job) for seconds, job in known if job.end == SUCCEEDED]
    late = [job.seconds > seconds for seconds, job in known]
    late_good = [job.seconds > seconds for seconds, job in good]
    far = fmean(job.seconds > 2 * seconds for seconds, job in known)
    ratio = median(seconds / job.seconds for seconds, job in good)
    spare = fmean(seconds > 4 * job.seconds for seconds, job in good)
    return (
        f"| {name} | {len(known) / len(answers):.0%} | {fmean(late):.1%} | {fmean(late_good):.1%}"
        f" | {far:.1%} | {ratio:.2f} | {spare:.1%} |"
    )


def main() -> None:
    """The tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    found = jobs(parser.parse_args().seed)
    high = at_quantile(0.9)
    print(f"{len(found)} jobs of {USERS} users in {DAYS} days\n")
    print(
        "| | estimated | ran longer | of those that succeed | more than twice | estimate / run |"
        " above 4 times |\n|---|---|---|---|---|---|---|"
    )
    tried = (("mean of the user's last two", last_two), *((f"{q:.0%}", at_quantile(q)) for q in _Q))
    for name, guess in tried:
        print(line(name, guesses(found, guess, COUNTED, Bounds())))
    for name, counted in (
        ("90%, with what failed", ALL),
        ("90%, only what succeeded or failed", ALL - {STOPPED}),
        ("90%, only what succeeded", frozenset((SUCCEEDED,))),
    ):
        print(line(name, guesses(found, high, counted, Bounds())))
    for runs in WINDOWS:
        print(line(f"90% of {runs} runs", guesses(found, high, COUNTED, Bounds(runs=runs))))
    answers = guesses(found, high, COUNTED, Bounds())
    for level in run_times.LEVELS:
        if some := [each for each in answers if each.level == level.name]:
            print(line(f"90%, by {level.name} ({len(some)})", some))


if __name__ == "__main__":
    main()
