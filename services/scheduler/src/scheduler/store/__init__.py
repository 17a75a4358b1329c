"""All SQL of the Scheduler; rows in, domain values out. Each function runs in its caller's
transaction.
"""

from scheduler.store import changes, gangs, leadership, nodes, record, run_times

__all__ = ["changes", "gangs", "leadership", "nodes", "record", "run_times"]
