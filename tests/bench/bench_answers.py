"""How long an answer to "why" takes with 10,000 waiting gangs: what would have to be otherwise,
the gangs ahead, and the expected start; and which moves would free cells.

    python tests/bench/bench_answers.py [--nodes 1024] [--asked 300] [--http]
"""

import argparse
import asyncio
import random
import time

import answers_http
import overload
import w2_run
from meter import quantile
from scheduler.domain.core.interface import Core
from scheduler.pauses import Collector

SEED = 7
ARRIVALS = 3_000
AIM_MS = 100


def full(nodes: int) -> Core:
    """The core of a full cluster with 10,000 waiting."""
    run = w2_run.start(nodes, ARRIVALS)
    while run.is_filling:
        run.advance(10_000)
    queue = overload.start(run.busy, SEED)
    while queue.is_queueing:
        queue.queue_up(overload.QUEUED_PER_CYCLE)
    queue.release(3)
    return run.busy.core


def _waits(core: Core, gang: str) -> bool:
    state = core.gang(gang)
    return state is not None and state.is_waiting and not state.is_nominated


def show_advice(core: Core) -> None:
    """Of cells of every type, one and several."""
    chains = core.forest.chains.values()
    types = dict.fromkeys(each for chain in chains for each in chain.types[1:])
    took = []
    for cells in (1, 2, 8):
        for each in types:
            began = time.process_time()
            core.questions.advise(None, each, cells)
            took.append(time.process_time() - began)
    took.sort()
    middle, most = quantile(took, 0.5) * 1e3, took[-1] * 1e3
    print(f"  moves that would free 1, 2 and 8 cells: p50 {middle:.1f} ms, longest {most:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_024)
    parser.add_argument("--asked", type=int, default=300, help="Gangs that are asked about.")
    parser.add_argument("--http", action="store_true", help="Ask REST, which asks the Scheduler.")
    arguments = parser.parse_args()
    if arguments.http:
        asyncio.run(answers_http.run(arguments.nodes, arguments.asked))
        return
    collector = Collector()
    collector.hold()  # as the service does: a look at all that lives takes longer than an answer
    core = full(arguments.nodes)
    collector.filled()
    lot = random.Random(SEED)
    waiting = sorted(each for each in core.gang_ids() if _waits(core, each))
    took: dict[str, list[float]] = {"what would have to be otherwise": [], "place and start": []}
    left_out = 0
    for gang in (lot.choice(waiting) for _ in range(arguments.asked)):
        began = time.process_time()
        found = core.questions.counterfactual(gang)
        then = time.process_time()
        core.questions.ahead(gang)
        core.questions.starts_at(gang)
        took["what would have to be otherwise"].append(then - began)
        took["place and start"].append(time.process_time() - then)
        left_out += found is not None and bool(found.left_out)
    print(f"{arguments.nodes:,} nodes, {len(waiting):,} wait, {arguments.asked} asked about")
    for what, times in took.items():
        times.sort()
        middle, p99, most = (quantile(times, share) * 1e3 for share in (0.5, 0.99, 1))
        print(f"  {what}: p50 {middle:.1f} ms, p99 {p99:.1f} ms, longest {most:.1f} ms")
    show_advice(core)
    print(f"  not all within the bounds: {left_out}; aim: {AIM_MS} ms together")


if __name__ == "__main__":
    main()
