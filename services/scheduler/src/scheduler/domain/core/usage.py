"""What users use of the cluster, and have used lately: for orders of users.

What is used is known from one cycle to the next: who leaves in between counts until the next.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp2, log

from scheduler.domain.core.config import Policy
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import OPPORTUNISTIC, RestoredUsage
from scheduler.domain.core.ordering import Ordering, UserUsage

UserKey = tuple[str, bool, str]
"""Virtual cluster, whether of opportunistic gangs, user."""

LN2 = log(2)

LEAST = 1.0
"""Less than so many seconds of one GPU, CPU, or MB is forgotten."""


Amounts = list[int]
"""By the number of the resource."""


@dataclass(slots=True)
class Account:
    """By resource: ``used``, amounts times seconds up to ``at``, faded; ``now``, amounts."""

    at: float
    used: list[float]
    now: list[int]


class Usage:
    """Accounts of users whose gangs run or have run. ``is_kept``: some order asks for them."""

    def __init__(self, hardware: Hardware, policy: Policy, ordering: Ordering) -> None:
        self.is_kept = ordering.has_users
        self._ordering = ordering
        self._policy = policy
        capacity = _capacity(hardware) if self.is_kept else {}
        self._names = sorted(name for name, amount in capacity.items() if amount)
        self._capacity = [capacity[name] for name in self._names]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._has_more = len(self._names) > len(hardware.gpu_types)
        self._accounts: dict[UserKey, Account] = {}
        self._left: list[tuple[UserKey, Amounts]] = []
        self._ranks: dict[UserKey, tuple[float, ...]] = {}
        self._ranks_at = 0.0

    def begin(self, live: Live, pods: Iterable[Pod], now: float) -> None:
        """Pods of a gang run from now on."""
        if self.is_kept:
            self._add(key_of_user(live), self._amounts(pods), now, 1)

    def end(self, live: Live, pods: Iterable[Pod]) -> None:
        """They don't any more."""
        if self.is_kept:
            self._left.append((key_of_user(live), self._amounts(pods)))

    def settle(self, now: float) -> None:
        """A cycle begins."""
        for key, amounts in self._left:
            self._add(key, amounts, now, -1)
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
        left, added_s = self._faded(now - account.at)
        mean_s = self._policy.half_life_s / LN2
        lately, current = dict[str, float](), dict[str, float]()
        for number, name in enumerate(self._names):
            amount, capacity = account.now[number], self._capacity[number]
            used = account.used[number] * left + amount * added_s
            lately[name] = used / mean_s / capacity if used >= LEAST else 0.0
            current[name] = amount / capacity
        return UserUsage(virtual_cluster, user, weight, current, lately)

    def exported(self) -> list[RestoredUsage]:
        """All that is kept of it, apart from what gangs that run tell."""
        return [
            RestoredUsage(
                virtual_cluster,
                user,
                is_guest,
                account.at,
                {n: used for n, used in zip(self._names, account.used, strict=True) if used},
            )
            for (virtual_cluster, is_guest, user), account in sorted(self._accounts.items())
            if any(account.now) or max(account.used, default=0.0) >= LEAST
        ]

    def restore(self, restored: RestoredUsage) -> None:
        """What a user used before."""
        if self.is_kept:
            key = restored.virtual_cluster, restored.is_opportunistic, restored.user
            account = self._account(key, restored.at)
            account.at = restored.at
            account.used = [restored.used.get(name, 0.0) for name in self._names]

    def _account(self, key: UserKey, now: float) -> Account:
        account = self._accounts.get(key)
        if account is None:
            count = len(self._names)
            account = self._accounts[key] = Account(now, [0.0] * count, [0] * count)
        return account

    def _add(self, key: UserKey, amounts: Amounts, now: float, times: int) -> None:
        account = self._account(key, now)
        if now > account.at:
            left, added_s = self._faded(now - account.at)
            for number, amount in enumerate(account.now):
                account.used[number] = account.used[number] * left + amount * added_s
            account.at = now
        for number, amount in enumerate(amounts):
            account.now[number] += times * amount
        self._ranks.pop(key, None)

    def _faded(self, elapsed_s: float) -> tuple[float, float]:
        """What is left of what was used so long ago; and what has come of one that is used all the
        time since, which fades too.
        """
        half_life_s = self._policy.half_life_s
        left = exp2(-max(elapsed_s, 0.0) / half_life_s)
        return left, (1.0 - left) * half_life_s / LN2

    def _amounts(self, pods: Iterable[Pod]) -> Amounts:
        found = [0] * len(self._names)
        for pod in pods:
            if pod.state is not None:
                found[self._numbers[pod.state.gpu_type]] += pod.gpus.bit_count()
            if self._has_more:
                kind = pod.kind
                for name, amount in (("cpu", kind.cpu), ("memoryMB", kind.memory_mb)):
                    if amount and name in self._numbers:
                        found[self._numbers[name]] += amount
                for name, amount in kind.resources:
                    if name in self._numbers:
                        found[self._numbers[name]] += amount
        return found


def key_of_user(live: Live) -> UserKey:
    """Whose account a gang's is."""
    gang = live.gang
    return gang.virtual_cluster, gang.priority == OPPORTUNISTIC, gang.user


def _capacity(hardware: Hardware) -> dict[str, int]:
    """What all nodes have together; 0 where it is not limited."""
    found: defaultdict[str, int] = defaultdict(int)
    for machine in hardware.machines.values():
        for name, amount in zip(machine.sort.names, machine.sort.capacity, strict=True):
            found[name] += amount
        for state in machine.slots:
            found[state.gpu_type] += len(state.slot.gpus)
    return found
