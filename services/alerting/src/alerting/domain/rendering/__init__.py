"""How each kind of receiver reads a message, and what its answers mean: pure functions."""

from collections.abc import Mapping

from muster.contracts.subscriptions import ReceiverKind

from alerting.domain.rendering import ntfy, pagerduty, slack, teams, webhook
from alerting.domain.rendering.forms import HttpForm

FORMS: Mapping[ReceiverKind, HttpForm] = {
    ReceiverKind.WEBHOOK: HttpForm(webhook.render, webhook.judge),
    ReceiverKind.SLACK: HttpForm(slack.render, slack.judge),
    ReceiverKind.TEAMS: HttpForm(teams.render, teams.judge),
    ReceiverKind.PAGERDUTY: HttpForm(pagerduty.render, pagerduty.judge),
    ReceiverKind.NTFY: HttpForm(ntfy.render, ntfy.judge),
}
"""The kinds of receivers that are reached over HTTP."""
