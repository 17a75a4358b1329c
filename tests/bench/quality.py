"""How good places are: racks that a gang spans, in-node locality, what is in use, waiting gangs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.model import PodPlace
from w1 import GPUS_PER_NODE, Arrival


def is_best_block(gpus: Sequence[int]) -> bool:
    """Whether the GPUs (a power of 2 of them) lie in the smallest cell that can hold as many, where
    cells are of 1, 2, 4 and 8 GPUs.
    """
    return min(gpus) // len(gpus) == max(gpus) // len(gpus)


def pods_in_worse_blocks(
    event: Arrival,
    places: Sequence[PodPlace],
    others: Iterable[tuple[str, Sequence[PodPlace]]],
    rack_of: Mapping[str, int],
) -> int:
    """Pods of a gang that are in no best block though its virtual cluster had one free: in a rack
    of its own, or of nobody's. ``others``: virtual cluster and places of each other gang.
    """
    worse = sum(not is_best_block(place.gpus) for place in places)
    if not worse:
        return 0
    taken: dict[str, set[int]] = defaultdict(set)
    owner: dict[int, str] = {}
    for virtual_cluster, theirs in others:
        for place in theirs:
            taken[place.node].update(place.gpus)
            owner[rack_of[place.node]] = virtual_cluster
    own = (n for n, rack in rack_of.items() if owner.get(rack) in (None, event.virtual_cluster))
    blocks = [range(first, first + event.gpus) for first in range(0, GPUS_PER_NODE, event.gpus)]
    has_block = any(taken[node].isdisjoint(block) for node in own for block in blocks)
    return worse if has_block else 0


@dataclass(slots=True)
class Quality:
    """Counts over arrivals; ``spans``: racks of each placed gang with more than one pod;
    ``worse_pods``: those in no best block though there was one.
    """

    rack_of: Mapping[str, int]
    gpus_of_all: int
    arrived: int = 0
    waits: int = 0
    multi_arrived: int = 0
    spans: list[int] = field(default_factory=list)
    pods: int = 0
    best_pods: int = 0
    worse_pods: int = 0
    used_sum: float = 0.0

    def arrival(
        self, event: Arrival, places: Sequence[PodPlace] | None, gpus_in_use: int, worse_pods: int
    ) -> None:
        """One arrival: where its pods are, None if it was not placed in its own cycle."""
        self.arrived += 1
        self.worse_pods += worse_pods
        self.used_sum += gpus_in_use / self.gpus_of_all
        self.multi_arrived += event.pods > 1
        if places is None:
            self.waits += 1
            return
        if event.pods > 1:
            self.spans.append(len({self.rack_of[place.node] for place in places}))
        for place in places:
            self.pods += 1
            self.best_pods += is_best_block(place.gpus)

    @property
    def utilisation(self) -> float:
        return self.used_sum / self.arrived if self.arrived else 0.0

    @property
    def in_one_rack(self) -> int:
        return sum(1 for span in self.spans if span == 1)

    @property
    def in_one_rack_of_arrived(self) -> float:
        """Of all gangs with more than one pod that arrived, those that wait included."""
        return self.in_one_rack / self.multi_arrived if self.multi_arrived else 0.0

    @property
    def mean_span(self) -> float:
        return sum(self.spans) / len(self.spans) if self.spans else 0.0

    @property
    def best_share(self) -> float:
        return self.best_pods / self.pods if self.pods else 0.0
