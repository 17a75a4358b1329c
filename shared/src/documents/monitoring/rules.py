"""Every alert rule."""

from documents.monitoring.spec import Group, Rule

SCHEDULER = Group(
    name="scheduler",
    tells="The Scheduler's own health.",
    rules=(
        Rule(
            name="SchedulerAccountingDrift",
            severity="critical",
            expr="muster_scheduler_drifted_gangs > 0",
            keep="10m",
            summary="The Scheduler's accounting of {{ $value }} gangs differs from their"
            " placements",
            means="What the leader counts as gangs come and go is not what their placements say."
            " Nothing is given twice, but gangs may wait or be preempted needlessly.",
            action="Save `muster export cluster.json events.jsonl --since 2h`, restart the leader,"
            " and report both. `muster_scheduler_drift` has the gangs.",
        ),
        Rule(
            name="SchedulerAuditStands",
            severity="warning",
            expr="(muster_scheduler_is_leader == 1) and"
            " (changes(muster_scheduler_audits_total[10m]) == 0)",
            wait="5m",
            summary="The Scheduler has not come to the end of a self-audit for 15 minutes",
            means="The leader audits its accounting every minute. Its cycles never end, so drifts"
            " are not found.",
            action="See `muster_scheduler_cycle_parts_total` and the time of a cycle; give the"
            " leader more CPU.",
        ),
    ),
)

GROUPS = (SCHEDULER,)
