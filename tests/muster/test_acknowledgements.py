"""Acknowledgements: who may acknowledge what, by the topic on which it is received."""

import pytest
from muster.acknowledgements import addressed_to
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.topics import TOPICS, Service

APPLIED = tuple(
    AppliedRevision(kind=kind, subject=kind, revision=2**62, sender_revision=1)
    for kind in ("job", "gang", "pod")
)


@pytest.mark.parametrize(
    ("sender", "topic", "kinds"),
    [
        ("rest", "revision-acknowledged", ["job"]),
        ("scheduler", "revision-acknowledged", ["gang"]),
        ("runtime-agent", "pod-acknowledged", ["pod"]),
        ("runtime-agent", "revision-acknowledged", []),
        ("rest", "pod-acknowledged", []),
        ("scheduler", "pod-acknowledged", []),
        ("launcher", "revision-acknowledged", []),
        ("nobody", "pod-acknowledged", []),
    ],
)
def test_a_sender_acknowledges_its_own_kind_on_its_own_topic(
    sender: str, topic: str, kinds: list[str]
) -> None:
    notice = RevisionAcknowledged(sender=sender, receiver="launcher", applied=APPLIED)
    found = addressed_to(Service.LAUNCHER, notice, topic)
    assert [each.kind for each in found] == kinds
    assert addressed_to(Service.SCHEDULER, notice, topic) == []


def test_agents_and_services_write_to_no_topic_of_each_other() -> None:
    """An agent that could write to theirs could acknowledge a job or a gang in their name."""
    assert TOPICS["pod-acknowledged"].senders == (Service.RUNTIME_AGENT,)
    assert Service.RUNTIME_AGENT not in TOPICS["revision-acknowledged"].senders
