"""What users use of a cluster, and have used lately, by account: for orders of users.

What is used is known from one cycle to the next: who leaves in between counts until the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp2, log

from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import RestoredUsage, UserKey
from scheduler.domain.core.ordering import Ordering, UserUsage

LN2 = log(2)

LEAST = 1.0
"""Less than so many seconds of one GPU, CPU, or MB is forgotten."""

SWEEP_S = 3600.0
"""So often accounts are looked for that have faded."""

Amounts = list[tuple[int, int]]
"""Numbers of resources, and how much of them; one may come again."""


@dataclass(slots=True)
class Account:
    """By resource: ``used``, amounts times seconds up to ``at``, faded; ``now``, amounts."""

    at: float
    used: list[float]
    now: list[int]


class Accounts:
    """Accounts of users whose gangs run or have run. ``is_kept``: some order asks for them.
    ``changed``: those that may be others than before, until the caller clears it. ``is_timed``: off
    while memory is restored, for what was used by then is told. ``numbers``: of resources of which
    the cluster has some.
    """

    def __init__(self, capacity: Mapping[str, int], policy: Policy, ordering: Ordering) -> None:
        """``capacity``: what all nodes have together, by resource; 0 where it is not limited."""
        self.is_kept = ordering.has_users
        self._ordering = ordering
        self._weights = policy.weights
        self._half_life_s, self._mean_s = policy.half_life_s, policy.half_life_s / LN2
        self._names = sorted(name for name, amount in capacity.items() if amount)
        self._capacity = [capacity[name] for name in self._names]
        self.numbers = {name: number for number, name in enumerate(self._names)}
        self._accounts: dict[UserKey, Account] = {}
        self.changed: set[UserKey] = set()
        self.is_timed = True
        self._new: set[UserKey] = set()
        self._swept_at = 0.0
        self._left: dict[str, list[tuple[UserKey, Amounts]]] = {}
        self._ranks: dict[UserKey, tuple[float, ...]] = {}
        self._ranks_at = 0.0

    def leave(self, gang: str, key: UserKey, amounts: Amounts) -> None:
        """A gang's user uses so much, which is negative, more from the next cycle on."""
        self._left.setdefault(gang, []).append((key, amounts))

    def settle(self, now: float) -> None:
        """A cycle begins."""
        if self._new:
            for key in self._new:
                self._accounts[key].at = now
            self._new.clear()
        for left in self._left.values():
            for key, amounts in left:
                self.add(key, amounts, now)
        self._left.clear()
        if now >= self._swept_at + SWEEP_S:
            self._sweep(now)

    def forget(self, gang: str) -> None:
        """What was said of the gang, which is gone, never was."""
        for key, amounts in self._left.pop(gang, ()):
            account = self._accounts.get(key)
            if account is None:  # no cycle has seen the gang
                continue
            for number, amount in amounts:
                account.now[number] += amount

    def ranks_of(self, key: UserKey, now: float) -> tuple[float, ...]:
        """A user's, by the orders of users."""
        if now != self._ranks_at:
            self._ranks.clear()
            self._ranks_at = now
        found = self._ranks.get(key)
        if found is None:
            usage = self.of(key, now)
            ranks = [policy.rank_user(usage) for policy in self._ordering.of_users]
            found = self._ranks[key] = tuple(ranks)
        return found

    def of(self, key: UserKey, now: float) -> UserUsage:
        """What a user uses, and used lately."""
        virtual_cluster, _, user = key
        weight = self._weights.get(user, 1.0)
        account = self._accounts.get(key)
        if account is None:
            nothing = dict.fromkeys(self._names, 0.0)
            return UserUsage(virtual_cluster, user, weight, nothing, nothing)
        left, added_s = self._faded(now - account.at)
        lately, current = dict[str, float](), dict[str, float]()
        for number, name in enumerate(self._names):
            amount, capacity = account.now[number], self._capacity[number]
            used = account.used[number] * left + amount * added_s
            lately[name] = used / self._mean_s / capacity if used >= LEAST else 0.0
            current[name] = amount / capacity
        return UserUsage(virtual_cluster, user, weight, current, lately)

    def exported(self) -> list[RestoredUsage]:
        """All that is kept of it, apart from what gangs that run tell."""
        found = [self.exported_of(key) for key in sorted(self._accounts)]
        return [each for each in found if each is not None]

    def exported_of(self, key: UserKey) -> RestoredUsage | None:
        """The same of one account; None: there is nothing to keep."""
        account = self._accounts.get(key)
        if account is None or not (any(account.now) or _is_some(account.used)):
            return None
        virtual_cluster, is_guest, user = key
        used = {n: used for n, used in zip(self._names, account.used, strict=True) if used}
        return RestoredUsage(virtual_cluster, user, is_guest, account.at, used)

    def restore(self, restored: RestoredUsage) -> None:
        """What a user used before."""
        if self.is_kept:
            key = restored.virtual_cluster, restored.is_opportunistic, restored.user
            account = self._account(key, restored.at)
            account.at = restored.at
            account.used = [restored.used.get(name, 0.0) for name in self._names]
            self._ranks.pop(key, None)
            self.changed.add(key)

    def take_over(self, old: "Accounts") -> None:
        """What was known before a change of the configuration, and after all gangs. Accounts that
        there were none of begin with the next cycle, whenever the change was made.
        """
        known = old.exported()
        for each in known:
            self.restore(each)
        self.is_timed = old.is_timed
        for gang, left in old._left.items():
            for key, amounts in left:
                self._leave_late(gang, key, [(old._names[n], amount) for n, amount in amounts])
        keys = {(each.virtual_cluster, each.is_opportunistic, each.user) for each in known}
        self._new = {key for key in self._accounts if key in old._new or key not in keys}

    def _leave_late(self, gang: str, key: UserKey, amounts: Iterable[tuple[str, int]]) -> None:
        """A gang that is gone already used so much until the next cycle."""
        known = [(self.numbers[name], amount) for name, amount in amounts if name in self.numbers]
        account = self._account(key, self._swept_at)
        for number, amount in known:
            account.now[number] -= amount
        self.leave(gang, key, known)

    def restore_none(self, key: UserKey) -> None:
        """The user had used nothing before."""
        account = self._accounts.get(key)
        if account is not None:
            account.used = [0.0] * len(self._names)
            self._ranks.pop(key, None)

    def _account(self, key: UserKey, now: float) -> Account:
        account = self._accounts.get(key)
        if account is None:
            count = len(self._names)
            account = self._accounts[key] = Account(now, [0.0] * count, [0] * count)
        return account

    def add(self, key: UserKey, amounts: Amounts, now: float) -> None:
        """A user uses so much more from now on."""
        account = self._accounts.get(key) or self._account(key, now)
        if now > account.at and self.is_timed:
            left, added_s = self._faded(now - account.at)
            used, current = account.used, account.now
            for number, amount in enumerate(current):
                used[number] = used[number] * left + amount * added_s
            account.at = now
            # Whether it was swept by then, or not.
            if not (any(current) or _is_some(used)):
                account.used = [0.0] * len(used)
        for number, amount in amounts:
            account.now[number] += amount
        self._ranks.pop(key, None)
        self.changed.add(key)

    def _sweep(self, now: float) -> None:
        """Forget accounts of which nothing is left; for orders nothing was before."""
        self._swept_at = now
        for key, account in list(self._accounts.items()):
            left, _ = self._faded(now - account.at)
            if not (any(account.now) or _is_some([used * left for used in account.used])):
                del self._accounts[key]
                self._ranks.pop(key, None)
                self.changed.add(key)

    def _faded(self, elapsed_s: float) -> tuple[float, float]:
        """What is left of what was used so long ago; and what has come of one that is used all the
        time since, which fades too.
        """
        left = exp2(-max(elapsed_s, 0.0) / self._half_life_s)
        return left, (1.0 - left) * self._half_life_s / LN2


def _is_some(used: Iterable[float]) -> bool:
    return max(used, default=0.0) >= LEAST
