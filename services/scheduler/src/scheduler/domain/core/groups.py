"""Gangs of one job that are put near one another."""

from scheduler.domain.core.holdings import Live


class Groups:
    """Ids of gangs by job and group."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], set[str]] = {}

    def add(self, live: Live) -> None:
        """A gang is known from now on."""
        if live.gang.group is not None:
            self._ids.setdefault((live.gang.job, live.gang.group), set()).add(live.id)

    def discard(self, live: Live) -> None:
        """A gang is over."""
        if live.gang.group is not None:
            key = (live.gang.job, live.gang.group)
            self._ids[key].discard(live.id)
            if not self._ids[key]:
                del self._ids[key]

    def of(self, live: Live) -> set[str]:
        """The gang, and those of its group."""
        if live.gang.group is None:
            return {live.id}
        return self._ids[live.gang.job, live.gang.group] | {live.id}
