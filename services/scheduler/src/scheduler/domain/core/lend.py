"""Borrowed capacity: a gang in the idle quota of one other virtual cluster, without victims.

The gang is charged to its lender, below all of the lender's own gangs. So these can have all of it
back by the ordinary steps of `fit`, and nothing else knows of it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from scheduler.domain.core.config import ALL_TYPES, VirtualCluster
from scheduler.domain.core.fit import Fit, fit
from scheduler.domain.core.model import OPPORTUNISTIC
from scheduler.domain.core.nodes import Workload
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.shortage import is_beyond, wanted
from scheduler.domain.core.state import State

LENDERS = 8
"""Lenders that are tried for one gang."""

BORROWED = OPPORTUNISTIC
"""The priority of what is lent: the lender's own gangs come before it."""


_Counts = defaultdict[str, Counter[str]]
"""Leaves by GPU type, of virtual clusters."""


class Lending:
    """How much may be lent: ``lendingLimit`` and ``borrowingLimit`` by GPU type."""

    def __init__(self, state: State, clusters: Mapping[str, VirtualCluster]) -> None:
        self._state = state
        self._clusters = clusters

    def borrow(self, workload: Workload, borrowers: Collection[Workload]) -> str | None:
        """Place a workload in another virtual cluster's quota: what a gang on borrowed capacity
        grows by, in its lender's. Returns the lender; None: none lends it, and nothing has
        changed.
        """
        lent, borrowed = _counts(borrowers)
        own, only = workload.gang.virtual_cluster, lender_of(workload)
        if own not in self._clusters:  # the configuration has lost it
            return None
        for lender in self._lenders(workload, lent, borrowed) if only is None else (only,):
            with self._state.trial() as trial:
                self._state.borrow(workload, owner_of(lender), BORROWED)
                if not isinstance(fit(self._state, workload, None), Fit):
                    continue
                leaves = _leaves(workload)
                is_within = _fits(leaves, lent[lender], self._clusters[lender].lending_limit)
                if is_within and _fits(leaves, borrowed[own], self._clusters[own].borrowing_limit):
                    trial.commit()
                    return lender
        return None

    def may_lend(self, workload: Workload) -> bool:
        """Another virtual cluster owns as much as a workload wants."""
        own, only = workload.gang.virtual_cluster, lender_of(workload)
        lenders = (name for name in self._clusters if name != own) if only is None else (only,)
        lent = (replace(workload, owner=owner_of(lender)) for lender in lenders)
        return any(not is_beyond(self._state, wanted(self._state, each)) for each in lent)

    def _lenders(
        self,
        workload: Workload,
        lent: _Counts,
        borrowed: _Counts,
    ) -> list[str]:
        """The virtual cluster that could lend most, first."""
        own = workload.gang.virtual_cluster
        types = set[str]()
        for want, _ in workload.wants:
            types |= set(want.gpu_types or self._state.forest.racks)
        idle: dict[str, int] = {}
        for name, cluster in self._clusters.items():
            if name == own:
                continue
            spare = {t: self._state.spare(owner_of(name), (t,), BORROWED) for t in types}
            for limit, used in (
                (cluster.lending_limit, lent[name]),
                (self._clusters[own].borrowing_limit, borrowed[own]),
            ):
                spare = {t: min(n, limit.get(t, n + used[t]) - used[t]) for t, n in spare.items()}
            found = sum(max(n, 0) for n in spare.values())
            if found > 0:
                idle[name] = found
        return sorted(idle, key=lambda name: (-idle[name], name))[:LENDERS]


def _counts(borrowers: Collection[Workload]) -> tuple[_Counts, _Counts]:
    """Leaves by GPU type, and of all types together: by lender, and by borrower."""
    lent, borrowed = _Counts(Counter), _Counts(Counter)
    for each in borrowers:
        leaves = _leaves(each)
        lent[lender_of(each) or ""].update(leaves)
        borrowed[each.gang.virtual_cluster].update(leaves)
    return lent, borrowed


def _leaves(workload: Workload) -> Counter[str]:
    found: Counter[str] = Counter()
    for place in workload.places:
        found[place.slot.pool.gpu_type or ""] += place.charge.bit_count()
        found[ALL_TYPES] += place.charge.bit_count()
    return found


def _fits(leaves: Mapping[str, int], used: Mapping[str, int], limit: Mapping[str, int]) -> bool:
    """Of types that are not wanted more may be in use: the limit was lowered."""
    return all(n + used.get(t, 0) <= limit[t] for t, n in leaves.items() if t in limit)


def lender_of(workload: Workload) -> str | None:
    """The virtual cluster in whose quota a workload is, if that is not its own."""
    own = owner_of(workload.gang.virtual_cluster)
    if workload.owner is None or workload.owner == own:
        return None
    return workload.owner.removeprefix(owner_of(""))
