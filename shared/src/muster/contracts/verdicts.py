"""A failure is a verdict with evidence: cause, symptom, outcome, the party at fault, and the line
of the log that shows it.
"""

from muster.contracts.model import Model, OpenEnum


class Fault(OpenEnum):
    """The party that caused the end."""

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
