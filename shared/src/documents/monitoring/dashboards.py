"""Every dashboard."""

from documents.monitoring.spec import Dashboard, Panel, Row

SCHEDULER = Dashboard(
    title="Scheduler",
    uid="muster-scheduler",
    tells="Whether the Scheduler decides quickly, and why gangs wait.",
    rows=(
        Row(
            "Decisions",
            (
                Panel(
                    title="Decisions",
                    unit="ops",
                    query="sum by (decision) (rate(muster_scheduler_decisions_total"
                    "[$__rate_interval]))",
                    legend="{{decision}}",
                    tells="Decisions about gangs a second, by kind.",
                    action="Many preemptions: compare the quotas with what people ask for.",
                ),
                Panel(
                    title="Time of a cycle",
                    unit="s",
                    query="histogram_quantile(0.95, sum by (le) (rate("
                    "muster_scheduler_cycle_seconds_bucket[$__rate_interval])))",
                    legend="95 % are shorter",
                    tells="Seconds of one cycle with its transaction.",
                    action="Above 1 s: look at the database, then at the core's own time.",
                ),
            ),
        ),
    ),
)

DASHBOARDS = (SCHEDULER,)
