"""What all answers over HTTP are made of."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from scheduler.domain.state import State

Answer = dict[str, Any]
"""A JSON object."""

Alone = Callable[[], AbstractAsyncContextManager[State]]
"""Gives the state while nothing else reads or changes it: most questions change it and undo that.
The block awaits nothing. Raises Transient where the state can't be had in time.
"""
