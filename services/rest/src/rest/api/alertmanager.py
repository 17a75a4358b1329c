"""Alertmanager's webhook: its alerts go to Alerting, which lists them and acts on them.

Alertmanager repeats a request after a 5xx or a broken connection, and drops it after a 4xx. So what
can be read is taken, and 2xx is answered once it is stored.
"""

import hashlib
import hmac
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from muster.channels import Outgoing
from muster.contracts.alerts import AlertsReceived, ReceivedAlert
from muster.counted import counted
from muster.db import Transaction
from muster.errors import Rejected
from muster.service_keys import bearer_token
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from rest.api.context import Here, context_of
from rest.api.router import new_router
from rest.api.tokens import Done

_log = structlog.get_logger()

TOPIC = "alerts-received"
PART_ALERTS, PART_BYTES = 500, 500_000
"""Of one record. A request's alerts may be in several: a refusal would lose them."""
MAX_LABELS, MAX_LABEL, MAX_TEXT = 64, 1024, 4096
"""Longer ones are cut: a refusal would lose the alert."""

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Times beyond them become these: sums with them or other time zones would leave the calendar."""


def _bounded(time: datetime) -> datetime:
    return min(max(time, EARLIEST), LATEST).astimezone(UTC)


Texts = dict[str, str]
Time = Annotated[AwareDatetime, AfterValidator(_bounded)]


class AlertmanagerAlert(BaseModel):
    """One alert. ``endsAt`` is of the year 1 while it fires."""

    status: Literal["firing", "resolved"]
    labels: Texts
    annotations: Texts = {}
    startsAt: Time
    endsAt: Time | None = None
    generatorURL: str = ""
    fingerprint: Annotated[str, Field(pattern="^[0-9A-Za-z]{1,64}$")]


class AlertmanagerRequest(BaseModel):
    """A group's alerts, as Alertmanager sends them (version 4)."""

    version: Literal["4"]
    groupKey: str = ""
    status: str = ""
    receiver: str = ""
    truncatedAlerts: Annotated[int, Field(ge=0)] = 0
    alerts: list[AlertmanagerAlert]


class TokenFirst(APIRoute):
    """Checks the token before the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Of the route, with the check before it."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            here = await context_of(request)
            _check(here.settings.alertmanager_token.get_secret_value(), request)
            return await handle(request)

        return checked


router = new_router("/alerts", tag="alerts", route_class=TokenFirst)


@router.post("/alertmanager", response_model=Done)
async def take_alerts(wanted: AlertmanagerRequest, here: Here) -> Done:
    """Take the alerts of an Alertmanager's webhook. The token is `MUSTER_ALERTMANAGER_TOKEN`, which
    opens nothing else. An alert is known by `fingerprint` and `startsAt`: repeats change nothing.
    """
    group = hashlib.sha256(wanted.groupKey.encode()).hexdigest()[:16]
    left_out = wanted.truncatedAlerts
    async with here.relay.transaction() as opened:
        for part in parts_of(map(_received, wanted.alerts)):
            message = AlertsReceived(group=group, alerts=part, truncated=left_out, at=opened.now)
            opened.notices.append(_record(message, opened))
    message_text = f"Taken: {counted(len(wanted.alerts), 'alert')}."
    if left_out:
        _log.warning("Alertmanager left out alerts", group=group, alerts=left_out)
        message_text += f" Alertmanager left out {left_out}: raise `max_alerts` of its receiver."
    return Done(message=message_text)


def parts_of(alerts: Iterable[ReceivedAlert]) -> Iterator[tuple[ReceivedAlert, ...]]:
    """The alerts in parts that are each small enough for a record."""
    part: list[ReceivedAlert] = []
    size = 0
    for alert in alerts:
        its = len(alert.model_dump_json().encode())
        if part and (len(part) == PART_ALERTS or size + its > PART_BYTES):
            yield tuple(part)
            part, size = [], 0
        part.append(alert)
        size += its
    if part:
        yield tuple(part)


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
        starts_at=alert.startsAt,
        ends_at=_end(alert),
    )


def _end(alert: AlertmanagerAlert) -> datetime | None:
    if alert.status == "firing":
        return None
    end = alert.endsAt or alert.startsAt
    return max(end, alert.startsAt)


def _record(message: AlertsReceived, opened: Transaction) -> Outgoing:
    value = message.model_dump_json(exclude_none=True).encode()
    ident = hashlib.sha256(value).hexdigest()[:32]
    at = opened.now.timestamp()
    return Outgoing(TOPIC, message.group, value, f"rest/alerts/{ident}", at)
