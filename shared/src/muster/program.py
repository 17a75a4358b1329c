"""How a program loads its modules at its start: ``with loading(): from rest.app import main``."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """The garbage collector is off meanwhile, and never visits what was loaded: modules live as
    long as the program.

    structlog would load rich, where it is installed, to draw exceptions; services write them plain.
    """
    gc.disable()
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["rich"]
        gc.freeze()
        gc.enable()
