"""A failure is a verdict with evidence: cause, symptom and outcome kept apart, who is at fault,
the line that tells.
"""

from muster.contracts.model import Model, OpenEnum


class Fault(OpenEnum):
    """Who made it end."""

    NOBODY = "nobody"
    USER = "user"
    PLATFORM = "platform"
    STOP = "stop"
    UNKNOWN = "unknown"


class Behavior(OpenEnum):
    """Whether trying again can help (FrameworkController's completion attributes)."""

    TRANSIENT = "transient"
    TRANSIENT_CONFLICT = "transient-conflict"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class Verdict(Model):
    """How a pod, a task attempt or a job attempt ended, and why.

    ``code`` and ``phrase`` are OpenPAI's exit specification where it has one.
    """

    code: int
    phrase: str
    rule: str
    fault: Fault
    behavior: Behavior
    cause: str
    symptom: str = ""
    outcome: str = ""
    evidence: str | None = None
