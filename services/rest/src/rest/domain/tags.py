"""Tags of jobs, which people and rules give: OpenPAI's, with bounds."""

from collections.abc import Sequence

from muster.errors import Rejected

MAX_TAGS, MAX_CHARACTERS = 50, 64
TAG = r"^[^,\s\x00-\x1f\x7f]([^,\x00-\x1f\x7f]*[^,\s\x00-\x1f\x7f])?$"
"""Printable, without commas; no blank at an end."""


def with_tag(tags: Sequence[str], tag: str) -> tuple[str, ...]:
    """The tags of a job and one more. Raises Rejected where it has as many as it may."""
    if tag not in tags and len(tags) >= MAX_TAGS:
        message = f"A job has at most {MAX_TAGS} tags: remove one."
        raise Rejected("InvalidParametersError", message)
    return tuple(sorted({*tags, tag}))


def without_tag(tags: Sequence[str], tag: str) -> tuple[str, ...]:
    """The others. Raises Rejected where the job has no such tag."""
    if tag not in tags:
        raise Rejected("NoTagError", f"The job has no tag {tag}.")
    return tuple(each for each in tags if each != tag)
