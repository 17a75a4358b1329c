"""What users use of the cluster, and have used lately: for orders of users.

What is used is known from one cycle to the next: who leaves in between counts until the next.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp2, log

from scheduler.domain.core.config import Policy
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import OPPORTUNISTIC, RestoredUsage
from scheduler.domain.core.ordering import Ordering, UserUsage

UserKey = tuple[str, bool, str]
"""Virtual cluster, whether of opportunistic gangs, user."""

LEAST = 1.0
"""Less than so many seconds of one GPU, CPU, or MB is forgotten."""


@dataclass(slots=True)
class Account:
    """``used``: by resource, amounts times seconds up to ``at``, faded; ``now``: amounts."""

    at: float
    used: dict[str, float] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)


class Usage:
    """Accounts of users whose gangs run or have run. ``is_kept``: some order asks for them."""

    def __init__(self, hardware: Hardware, policy: Policy, ordering: Ordering) -> None:
        self.is_kept = ordering.has_users
        self._ordering = ordering
        self._policy = policy
        self._capacity = _capacity(hardware)
        self._accounts: dict[UserKey, Account] = {}
        self._left: list[tuple[UserKey, dict[str, int]]] = []
        self._ranks: dict[UserKey, tuple[float, ...]] = {}
        self._ranks_at = 0.0

    def begin(self, live: Live, pods: Iterable[Pod], now: float) -> None:
        """Pods of a gang run from now on."""
        if self.is_kept:
            self._add(key_of_user(live), _amounts(pods), now)

    def end(self, live: Live, pods: Iterable[Pod]) -> None:
        """They don't any more."""
        if self.is_kept:
            self._left.append((key_of_user(live), _amounts(pods)))

    def settle(self, now: float) -> None:
        """A cycle begins."""
        for key, amounts in self._left:
            self._add(key, {name: -amount for name, amount in amounts.items()}, now)
        self._left.clear()

    def ranks(self, live: Live, now: float) -> tuple[float, ...]:
        """The gang's user's, by the orders of users."""
        if now != self._ranks_at:
            self._ranks.clear()
            self._ranks_at = now
        key = key_of_user(live)
        found = self._ranks.get(key)
        if found is None:
            usage = self.of(key, now)
            ranks = [policy.rank_user(usage) for policy in self._ordering.of_users]
            found = self._ranks[key] = tuple(ranks)
        return found

    def of(self, key: UserKey, now: float) -> UserUsage:
        """What a user uses, and used lately."""
        virtual_cluster, _, user = key
        weight = self._policy.weights.get(user, 1.0)
        account = self._accounts.get(key)
        if account is None:
            return UserUsage(virtual_cluster, user, weight, {}, {})
        mean_s = self._policy.half_life_s / log(2)
        capacity, used = self._capacity, self._used(account, now)
        lately = {n: amount_s / mean_s / capacity[n] for n, amount_s in used.items() if capacity[n]}
        current = {n: amount / capacity[n] for n, amount in account.now.items() if capacity[n]}
        return UserUsage(virtual_cluster, user, weight, current, lately)

    def exported(self) -> list[RestoredUsage]:
        """All that is kept of it, apart from what gangs that run tell."""
        return [
            RestoredUsage(virtual_cluster, user, is_guest, account.at, dict(account.used))
            for (virtual_cluster, is_guest, user), account in sorted(self._accounts.items())
            if account.now or max(account.used.values(), default=0.0) >= LEAST
        ]

    def restore(self, restored: RestoredUsage) -> None:
        """What a user used before."""
        if self.is_kept:
            key = restored.virtual_cluster, restored.is_opportunistic, restored.user
            account = self._accounts.setdefault(key, Account(restored.at))
            account.at, account.used = restored.at, dict(restored.used)

    def _add(self, key: UserKey, amounts: Mapping[str, int], now: float) -> None:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(now)
        account.used, account.at = self._used(account, now), max(account.at, now)
        for name, amount in amounts.items():
            left = account.now.get(name, 0) + amount
            account.used.setdefault(name, 0.0)
            if left:
                account.now[name] = left
            else:
                del account.now[name]
        self._ranks.pop(key, None)

    def _used(self, account: Account, now: float) -> dict[str, float]:
        """By now: what was used fades by the half-life; what is used all the time is added, and
        fades too.
        """
        half_life_s = self._policy.half_life_s
        left = exp2(-max(now - account.at, 0.0) / half_life_s)
        added_s = (1.0 - left) * half_life_s / log(2)
        found = {n: s * left + account.now.get(n, 0) * added_s for n, s in account.used.items()}
        return {n: amount_s if amount_s >= LEAST else 0.0 for n, amount_s in found.items()}


def key_of_user(live: Live) -> UserKey:
    """Whose account a gang's is."""
    gang = live.gang
    return gang.virtual_cluster, gang.priority == OPPORTUNISTIC, gang.user


def _amounts(pods: Iterable[Pod]) -> dict[str, int]:
    """By resource."""
    found: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        kind = pod.kind
        if pod.state is not None and pod.gpus:
            found[pod.state.gpu_type] += pod.gpus.bit_count()
        for name, amount in (("cpu", kind.cpu), ("memoryMB", kind.memory_mb), *kind.resources):
            if amount:
                found[name] += amount
    return found


def _capacity(hardware: Hardware) -> defaultdict[str, int]:
    """What all nodes have together; 0 where it is not limited."""
    found: defaultdict[str, int] = defaultdict(int)
    for machine in hardware.machines.values():
        for name, amount in zip(machine.sort.names, machine.sort.capacity, strict=True):
            found[name] += amount
        for state in machine.slots:
            found[state.gpu_type] += len(state.slot.gpus)
    return found
