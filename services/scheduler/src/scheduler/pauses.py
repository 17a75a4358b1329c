"""When Python's garbage collector may run in a process that decides.

By itself it stops the process whenever enough new values exist, and then visits all that are alive:
tens of milliseconds in a large cluster, amid a decision. Here it visits all of them once, after the
start, and sets them aside. From then on it runs only between decisions, over values since its last
run. Values without cycles, as all of the core's are, go by their reference counts.
"""

import gc

TIDIES_PER_SETTLE = 10_000
"""Only the next settling finds cycles that outlived a tidying; it is due after so many tidyings."""


class Collector:
    """This process's garbage collector, on demand."""

    def __init__(self) -> None:
        self._tidied = 0
        self._is_filled = False

    @property
    def is_settling_due(self) -> bool:
        """Whether `settle` should be called as soon as nothing is under way."""
        return self._tidied >= TIDIES_PER_SETTLE

    def hold(self) -> None:
        """Stop collection until the next settling, before many lasting values are made."""
        gc.disable()

    def filled(self) -> None:
        """All lasting values exist. The first time they are only set aside: none is garbage yet,
        and a visit would stop the process for long. Later calls collect the previous ones.
        """
        if self._is_filled:
            self.settle()
        else:
            self._is_filled = True
            gc.freeze()

    def settle(self) -> None:
        """Collect everything and set the rest aside. It takes long: call it after the start, and
        when nothing is under way.
        """
        gc.disable()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._tidied = 0

    def tidy(self) -> None:
        """Collect new values, and set the rest of them aside. It takes time in proportion to them:
        call it between batches.
        """
        gc.collect()
        gc.freeze()
        self._tidied += 1

    def close(self) -> None:
        """Return collection to Python."""
        gc.unfreeze()
        gc.enable()
