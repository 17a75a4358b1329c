"""Whether pods can mount a claim."""

from typing import Any

import pytest
from muster.claims import why_not_bound, why_not_everywhere


def a_claim(phase: str | None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "home", **metadata}, "status": {"phase": phase} if phase else {}}


@pytest.mark.parametrize(
    ("claim", "why", "fix"),
    [
        (None, "does not exist in the namespace jobs", "an operator makes it."),
        (a_claim(None), "is Pending, not Bound", "with a class of the mode Immediate"),
        (a_claim("Pending"), "WaitForFirstConsumer never is", "or with the name of its volume."),
        (a_claim("Lost"), "is Lost, not Bound", "makes it anew, with a volume."),
        (a_claim("Bound", deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted", "anew"),
    ],
)
def test_a_claim_that_pods_would_wait_for_is_named_with_its_fix(
    claim: dict[str, Any] | None, why: str, fix: str
) -> None:
    text = why_not_bound("home", "jobs", claim)
    assert text is not None
    assert text.startswith("The claim home ")
    assert (why in text, fix in text) == (True, True), text


@pytest.mark.parametrize(
    ("modes", "why"),
    [
        (["ReadWriteMany"], ""),
        (["ReadWriteOnce", "ReadOnlyMany"], ""),
        (["ReadWriteOnce"], "has the access mode ReadWriteOnce: one node at a time"),
        (["ReadWriteOncePod"], "has the access mode ReadWriteOncePod: one node at a time"),
    ],
)
def test_a_claim_for_one_node_is_named(modes: list[str], why: str) -> None:
    claim = a_claim("Bound") | {"spec": {"accessModes": modes}}
    text = why_not_everywhere("home", "jobs", claim) or ""
    assert (why in text, bool(text)) == (True, bool(why))


def test_a_bound_claim_can_be_mounted() -> None:
    assert why_not_bound("home", "jobs", a_claim("Bound")) is None
