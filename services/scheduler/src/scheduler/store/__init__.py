"""All SQL of the Scheduler; rows in, domain values out. Each function runs in its caller's
transaction.
"""

from scheduler.store import (
    changes,
    configuration,
    gangs,
    leadership,
    nodes,
    preemptions,
    record,
    reservations,
    run_times,
    usage,
)

__all__ = [
    "changes",
    "configuration",
    "gangs",
    "leadership",
    "nodes",
    "preemptions",
    "record",
    "reservations",
    "run_times",
    "usage",
]
