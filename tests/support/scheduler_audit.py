"""What a core finds wrong with its own accounting."""

from scheduler.domain.core.interface import Core, Drift


def audited(core: Core) -> list[Drift]:
    """All differences, in one go."""
    steps = core.audit()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)
