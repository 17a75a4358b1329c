"""Muster's own promises, measured by its histograms."""

from documents.monitoring.spec import Objective

SUBMISSION = 'muster_rest_request_seconds_count{route="/api/v2/jobs", method="POST"'
DECISION = "muster_job_answer_seconds"
LAG = "muster_record_lag_seconds"
DELIVERY = "muster_alerting_first_attempt_seconds"

OBJECTIVES = (
    Objective(
        name="Submission",
        title="Submissions are answered without an error of the platform",
        good=f'{SUBMISSION}, status!~"5.."}}',
        total=f"{SUBMISSION}}}",
        target=0.999,
        means="REST answers submissions of jobs with errors of its own (5xx).",
        action="Read REST's log; check the database.",
    ),
    Objective(
        name="Decision",
        title="A job has its first answer within 5 s",
        good=f'{DECISION}_bucket{{le="5.0"}}',
        total=f"{DECISION}_count",
        target=0.99,
        means="The Scheduler's first answers to job attempts come later than 5 s.",
        action="See the Scheduler's cycle and its leader, then the lag of the bus.",
    ),
    Objective(
        name="EventLag",
        title="A record is handled within 5 s",
        good=f'{LAG}_bucket{{le="5.0"}}',
        total=f"{LAG}_count",
        target=0.99,
        means="Services handle records of the bus later than 5 s after their events.",
        action="See which reader lags in the dashboard Bus and services; check its database.",
    ),
    Objective(
        name="Delivery",
        title="A notification is first attempted within 5 s",
        good=f'{DELIVERY}_bucket{{le="5.0"}}',
        total=f"{DELIVERY}_count",
        target=0.99,
        means="Alerting attempts notifications later than 5 s after their events.",
        action="See the waiting deliveries and Alerting's lag.",
    ),
)
