"""The server that commands are tried against."""

from collections.abc import Iterator

import pytest
from rest_double import Rest, rest_double


@pytest.fixture
def rest() -> Iterator[Rest]:
    """A server of this test's own."""
    with rest_double() as stub:
        yield stub
