"""What people ask of the list of jobs, checked: filters, order, page (OpenPAI's query)."""

from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import Problem, Rejected

ORDER_FIELDS: Mapping[str, str] = {
    "jobName": "name",
    "submissionTime": "submitted_at",
    "username": "username",
    "vc": "virtual_cluster",
    "retries": "retries_user + retries_platform + retries_resource",
    "totalTaskNumber": "total_tasks",
    "totalGpuNumber": "total_gpus",
    "state": "state",
    "completionTime": "completed_at",
    "jobPriority": "priority_class",
}
"""OpenPAI's names of orders, as SQL. Only these texts ever become SQL."""

DIRECTIONS = ("ASC", "DESC")
PRIORITIES = ("crit", "prod", "test", "oppo", "default")
STATES = ("WAITING", "RUNNING", "STOPPING", "SUCCEEDED", "STOPPED", "FAILED", "UNKNOWN")
MAX_LIST_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Listing:
    """A question to the list of jobs. None: any. ``priorities`` may name ``default``: unset.
    ``tags``: jobs with any of them; ``no_tags``: with none of them.
    """

    usernames: tuple[str, ...] | None = None
    virtual_clusters: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    priorities: tuple[str, ...] | None = None
    keyword: str | None = None
    tags: tuple[str, ...] | None = None
    no_tags: tuple[str, ...] | None = None
    order: str = "submissionTime"
    is_descending: bool = True
    offset: int = 0
    limit: int = 5000
    with_total_count: bool = False


def split(text: str | None) -> tuple[str, ...] | None:
    """A comma list; None where nothing is asked."""
    if text is None:
        return None
    entries = tuple(entry for entry in (part.strip() for part in text.split(",")) if entry)
    if len(entries) > MAX_LIST_ENTRIES:
        raise Rejected("InvalidParametersError", f"A list has at most {MAX_LIST_ENTRIES} entries.")
    return entries or None


def read_order(text: str | None) -> tuple[str, bool]:
    """``<field>,<ASC|DESC>``. Raises Rejected where it is none of them."""
    if not text:
        return "submissionTime", True
    field, _, direction = text.partition(",")
    if field not in ORDER_FIELDS or (direction or "ASC") not in DIRECTIONS:
        message = f"must be one of {', '.join(ORDER_FIELDS)}, then a comma and ASC or DESC"
        problem = Problem("order", message)
        raise Rejected("InvalidParametersError", f"The order {message}.", (problem,))
    return field, direction == "DESC"


def check_known(name: str, given: tuple[str, ...] | None, known: tuple[str, ...]) -> None:
    """Raises Rejected where an entry of a list is not a known word."""
    for entry in given or ():
        if entry not in known:
            message = f"must be a comma list of {', '.join(known)}"
            problem = Problem(name, message)
            raise Rejected("InvalidParametersError", f"`{name}` {message}.", (problem,))
