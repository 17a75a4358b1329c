"""For each alert rule: series with which it fires, and others with which it stays silent.

Values are in promtool's notation, one a minute: `0+1x60` counts up for an hour. `at`: when.
"""

from dataclasses import dataclass

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """What a rule makes of some series."""

    fires: Series
    silent: Series
    at: str = "1h"


LEADER = 'muster_scheduler_is_leader{instance="a"}'
AUDITS = 'muster_scheduler_audits_total{instance="a"}'

CASES: dict[str, Case] = {
    "SchedulerAccountingDrift": Case(
        {"muster_scheduler_drifted_gangs": "1+0x60"}, {"muster_scheduler_drifted_gangs": "0+0x60"}
    ),
    "SchedulerAuditStands": Case(
        {LEADER: "1+0x60", AUDITS: "7+0x60"}, {LEADER: "1+0x60", AUDITS: "0+1x60"}
    ),
}
