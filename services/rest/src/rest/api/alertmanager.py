"""Alertmanager's webhook: its alerts go to Alerting, which lists them and acts on them.

Alertmanager repeats a request after a 5xx or a broken connection, and drops it after a 4xx. So what
can be read is taken, and 2xx is answered once it is stored.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from muster.channels import Outgoing
from muster.contracts.alerts import AlertsReceived, ReceivedAlert
from muster.db import Transaction
from muster.errors import Rejected
from muster.service_keys import bearer_token
from pydantic import AwareDatetime, BaseModel, Field

from rest.api.context import Here
from rest.api.tokens import Done

router = APIRouter(prefix="/alerts", tags=["alerts"])

TOPIC = "alerts-received"
MAX_ALERTS = 500
"""Of one request; `max_alerts` of Alertmanager's receiver bounds them."""
MAX_LABELS, MAX_LABEL, MAX_TEXT = 64, 1024, 4096
"""Longer ones are cut: a refusal would lose the alert."""

Texts = dict[str, str]


class AlertmanagerAlert(BaseModel):
    """One alert. ``endsAt`` is of the year 1 while it fires."""

    status: Literal["firing", "resolved"]
    labels: Texts
    annotations: Texts = {}
    startsAt: AwareDatetime
    endsAt: AwareDatetime | None = None
    generatorURL: str = ""
    fingerprint: Annotated[str, Field(pattern="^[0-9A-Za-z]{1,64}$")]


class AlertmanagerRequest(BaseModel):
    """A group's alerts, as Alertmanager sends them (version 4)."""

    version: Literal["4"]
    groupKey: str = ""
    status: str = ""
    receiver: str = ""
    truncatedAlerts: int = 0
    alerts: Annotated[list[AlertmanagerAlert], Field(max_length=MAX_ALERTS)]


@router.post("/alertmanager", response_model=Done)
async def take_alerts(wanted: AlertmanagerRequest, request: Request, here: Here) -> Done:
    """Take the alerts of an Alertmanager's webhook. The token is `MUSTER_ALERTMANAGER_TOKEN`, which
    opens nothing else. An alert is known by `fingerprint` and `startsAt`: repeats change nothing.
    """
    _check(here.settings.alertmanager_token.get_secret_value(), request)
    group = hashlib.sha256(wanted.groupKey.encode()).hexdigest()[:16]
    async with here.relay.transaction() as opened:
        message = AlertsReceived(
            group=group, alerts=tuple(map(_received, wanted.alerts)), at=opened.now
        )
        opened.notices.append(_record(message, opened))
    return Done(message=f"{len(wanted.alerts)} alerts are taken.")


def _check(token: str, request: Request) -> None:
    """Raises Rejected where the token is not set here or is another one."""
    if not token:
        message = "Alertmanager's alerts are not taken: MUSTER_ALERTMANAGER_TOKEN is not set."
        raise Rejected("NotConfiguredError", message)
    given = bearer_token(request.headers.get("authorization", ""))
    if not hmac.compare_digest(given.encode(), token.encode()):
        message = "Send the token of MUSTER_ALERTMANAGER_TOKEN: `Authorization: Bearer <token>`."
        raise Rejected("UnauthorizedUserError", message)


def _received(alert: AlertmanagerAlert) -> ReceivedAlert:
    labels = {
        name[:MAX_LABEL]: value[:MAX_LABEL]
        for name, value in list(alert.labels.items())[:MAX_LABELS]
    }
    texts = {name: value[:MAX_TEXT] for name, value in alert.annotations.items()}
    name = labels.get("alertname", "Alert")
    return ReceivedAlert(
        fingerprint=alert.fingerprint,
        name=name,
        severity=labels.get("severity", ""),
        summary=texts.get("summary") or texts.get("description") or name,
        description=texts.get("description", ""),
        runbook=texts.get("runbook_url"),
        labels={
            key: value for key, value in labels.items() if key not in ("alertname", "severity")
        },
        starts_at=alert.startsAt.astimezone(UTC),
        ends_at=_end(alert),
    )


def _end(alert: AlertmanagerAlert) -> datetime | None:
    if alert.status == "firing":
        return None
    end = alert.endsAt or alert.startsAt
    return max(end, alert.startsAt).astimezone(UTC)


def _record(message: AlertsReceived, opened: Transaction) -> Outgoing:
    value = message.model_dump_json(exclude_none=True).encode()
    ident = hashlib.sha256(value).hexdigest()[:32]
    at = opened.now.timestamp()
    return Outgoing(TOPIC, message.group, value, f"rest/alerts/{ident}", at)
