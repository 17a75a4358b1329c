"""What every endpoint stands on, and who is asking."""

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from muster.bus import Bus
from muster.db import Pool
from muster.errors import Rejected
from muster.relay import Relay

from rest.claims import Claims
from rest.cluster import Cluster
from rest.domain.callers import Caller, check_admin, check_person
from rest.handlers.access import Access
from rest.handlers.act import Actions
from rest.handlers.alert_rules import AlertRules
from rest.handlers.configure import Configuration
from rest.handlers.confirm import EmailConfirmations
from rest.handlers.limit import RequestLimits
from rest.handlers.passwords import Passwords
from rest.handlers.publish import SettingsPublisher
from rest.handlers.report import Reports
from rest.handlers.submit import Submissions
from rest.metrics import RestMetrics
from rest.peers import Peers
from rest.settings import RestSettings
from rest.virtual_clusters import KnownVirtualClusters


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the service that endpoints use."""

    pool: Pool
    relay: Relay
    bus: Bus
    settings: RestSettings
    metrics: RestMetrics
    access: Access
    limits: RequestLimits
    passwords: Passwords
    confirmations: EmailConfirmations
    submissions: Submissions
    publisher: SettingsPublisher
    cluster: Cluster
    peers: Peers
    claims: Claims
    virtual_clusters: KnownVirtualClusters
    actions: Actions
    alert_rules: AlertRules
    reports: Reports
    configuration: Configuration
    stopping: asyncio.Event


async def context_of(request: Request) -> Context:
    """The parts of the service."""
    context: Context = request.app.state.context
    return context


async def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


Here = Annotated[Context, Depends(context_of)]
Address = Annotated[str, Depends(address_of)]


def bearer(authorization: str) -> tuple[str | None, str]:
    """The user that Basic names (None with Bearer) and the token. Raises Rejected."""
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return None, value
    if scheme.lower() == "basic" and value:
        try:
            username, _, token = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise Rejected(
                "UnauthorizedUserError",
                "The Authorization header can't be read: send `Bearer <token>`.",
            ) from None
        return username, token
    message = "Log in first, and send the token: `Authorization: Bearer <token>`."
    raise Rejected("UnauthorizedUserError", message)


async def user_of(request: Request) -> Caller:
    """Who asks. Raises Rejected where the token is none or not theirs."""
    here = await context_of(request)
    username, token = bearer(request.headers.get("authorization", ""))
    caller = await here.access.caller_of(token)
    if username is not None and (username != caller.username or not caller.is_application):
        message = "Basic authentication needs a user name and one of the user's application tokens."
        raise Rejected("UnauthorizedUserError", message)
    return caller


User = Annotated[Caller, Depends(user_of)]


async def _person(caller: User) -> Caller:
    check_person(caller)
    return caller


Person = Annotated[Caller, Depends(_person)]


async def _admin(caller: User) -> Caller:
    check_admin(caller)
    return caller


Admin = Annotated[Caller, Depends(_admin)]
