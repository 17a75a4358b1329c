"""All SQL of the Scheduler; rows in, domain values out. Each function runs in its caller's
transaction.
"""

from scheduler.store import (
    calibration,
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
    "calibration",
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
