"""When Python's garbage collector may run in a process that decides.

By itself it stops everything whenever enough new values exist, and then looks at all that are
alive: tens of milliseconds in a large cluster, in the middle of a decision. Here it looks at all
of them once, after the start, sets them aside, and from then on runs only when it is called,
between decisions, over what is new since the last time. Values without cycles, as all of the
core's are, go by their reference counts as ever.
"""

import gc

TIDIES_PER_SETTLE = 10_000
"""Cycles that outlived a tidying are found by the next settling only; so many tidyings later one
is due."""


class Collector:
    """The garbage collector of this process, on call."""

    def __init__(self) -> None:
        self._tidied = 0
        self._is_filled = False

    @property
    def is_settling_due(self) -> bool:
        """Whether `settle` should be called as soon as nothing is under way."""
        return self._tidied >= TIDIES_PER_SETTLE

    def hold(self) -> None:
        """Nothing is collected until the next settling, before much that will stay is made."""
        gc.disable()

    def filled(self) -> None:
        """All that will stay was made. The first time it is only set aside: nothing of it can be
        garbage yet, and to look at all of it would stop everything for long. Later it replaces what
        was there before, which is collected.
        """
        if self._is_filled:
            self.settle()
        else:
            self._is_filled = True
            gc.freeze()

    def settle(self) -> None:
        """Collect everything and set what is left aside. It takes long: after the start, and when
        nothing is under way.
        """
        gc.disable()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._tidied = 0

    def tidy(self) -> None:
        """Collect what is new, and set what is left of it aside. It takes as long as there is new:
        between batches.
        """
        gc.collect()
        gc.freeze()
        self._tidied += 1

    def close(self) -> None:
        """Leave it to Python again."""
        gc.unfreeze()
        gc.enable()
