"""What users use of the cluster, and have used lately: their accounts, of gangs and their pods."""

from collections import defaultdict
from collections.abc import Iterable

from scheduler.domain.core.accounts import Accounts, Amounts
from scheduler.domain.core.config import Policy
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import NO_ONE, Kind
from scheduler.domain.core.ordering import Ordering


class Usage(Accounts):
    """The accounts of a cluster's users."""

    def __init__(self, hardware: Hardware, policy: Policy, ordering: Ordering) -> None:
        super().__init__(_capacity(hardware) if ordering.has_users else {}, policy, ordering)
        self._has_more = len(self.numbers) > len(hardware.gpu_types)

    def begin(self, live: Live, pods: Iterable[Pod], now: float) -> None:
        """Pods of a gang run from now on."""
        if self.is_kept and live.gang.virtual_cluster != NO_ONE:
            self.add(live.account, self._amounts(pods, 1), now)

    def end(self, live: Live, pods: Iterable[Pod]) -> None:
        """They don't any more."""
        if self.is_kept and live.gang.virtual_cluster != NO_ONE:
            self.leave(live.extra_of or live.id, live.account, self._amounts(pods, -1))

    def ranks(self, live: Live, now: float) -> tuple[float, ...]:
        """The gang's user's, by the orders of users."""
        return self.ranks_of(live.account, now)

    def _amounts(self, pods: Iterable[Pod], times: int) -> Amounts:
        """What the pods use, so many times."""
        found: Amounts = []
        for pod in pods:
            if pod.state is not None:
                found.append((self.numbers[pod.state.gpu_type], times * pod.gpus.bit_count()))
            if self._has_more:
                found += self._beside_gpus(pod.kind, times)
        return found

    def _beside_gpus(self, kind: Kind, times: int) -> Amounts:
        wants = (("cpu", kind.cpu), ("memoryMB", kind.memory_mb), *kind.resources)
        numbers = self.numbers
        return [(numbers[name], times * n) for name, n in wants if n and name in numbers]


def _capacity(hardware: Hardware) -> dict[str, int]:
    """What all nodes have together; 0 where it is not limited."""
    found: defaultdict[str, int] = defaultdict(int)
    for machine in hardware.machines.values():
        for name, amount in zip(machine.sort.names, machine.sort.capacity, strict=True):
            found[name] += amount
        for state in machine.slots:
            found[state.gpu_type] += len(state.slot.gpus)
    return found
