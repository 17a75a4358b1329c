"""All SQL of the Scheduler; rows in, domain values out. Each function runs in its caller's
transaction.
"""

from scheduler.store import changes, configuration, gangs, leadership, nodes, record, run_times

__all__ = ["changes", "configuration", "gangs", "leadership", "nodes", "record", "run_times"]
