"""One way of paging: a request has `offset` and `limit`, an answer `total` where it is known."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query
from muster.errors import Problem, Rejected

from rest.api.context import Here, User

LONG_PAGES = 2
"""Pages of more than MUSTER_PAGE_DEFAULT entries that one user may ask for at a time: one takes
seconds.
"""


@dataclass(frozen=True, slots=True)
class Page:
    """At most ``limit`` entries, after the first ``offset``."""

    offset: int
    limit: int


async def _page(
    here: Here,
    caller: User,
    offset: Annotated[
        int, Query(ge=0, lt=10**9, description="How many entries the page skips.")
    ] = 0,
    limit: Annotated[
        int | None,
        Query(ge=0, description="The most entries of the page; MUSTER_PAGE_DEFAULT by default."),
    ] = None,
) -> AsyncIterator[Page]:
    """Raises Rejected where the page is larger than the settings allow, TooManyRequests where the
    caller has too many long pages in progress.
    """
    largest = here.settings.page_largest
    if limit is not None and limit > largest:
        message = f"must be at most {largest}; ask for more pages"
        problem = Problem("limit", message)
        raise Rejected("InvalidParametersError", f"`limit` {message}.", (problem,))
    if limit is None or limit <= here.settings.page_default:
        yield Page(offset, here.settings.page_default if limit is None else limit)
        return
    with here.limits.place("long pages of this user", caller.username, LONG_PAGES):
        yield Page(offset, limit)


Paging = Annotated[Page, Depends(_page)]
