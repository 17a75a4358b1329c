"""The operator's subscriptions: a YAML file that is read at the start and whenever it changes.

A file that is wrong changes nothing: the last valid one stays in force, and the log has each fault
with its line and field.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import structlog
from muster.contracts.model import Model
from muster.contracts.subscriptions import (
    NO_DIGEST,
    AlertEvent,
    ReceiverKind,
    SealedReceiver,
    Subscription,
)
from muster.errors import Problem, Rejected
from muster.protocol.document import read_document
from muster.protocol.problems import ProtocolError
from pydantic import ConfigDict, ValidationError, field_validator, model_validator

from alerting.domain.rendering import pagerduty
from alerting.domain.rendering.forms import Target
from alerting.domain.rendering.webhook import is_signing_secret
from alerting.metrics import AlertingMetrics
from alerting.places import problem_at
from alerting.subscriptions import Entry

_log = structlog.get_logger()

Environment = Mapping[str, str]


class SecretReference(Model):
    """Where a secret is: an environment variable or a file, never the file itself."""

    model_config = ConfigDict(extra="forbid")

    env: str | None = None
    file: Path | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("name one place: either env or file")
        return self


class SecretAddress(Model):
    """A receiver whose address is a secret; ``token`` opens it where it needs one."""

    model_config = ConfigDict(extra="forbid")

    url: SecretReference
    token: SecretReference | None = None


class RoutingKey(Model):
    """A service of PagerDuty's. ``url``: where its region takes events."""

    model_config = ConfigDict(extra="forbid")

    routing_key: SecretReference
    url: str = pagerduty.URL


class FileSubscription(Subscription):
    """A subscription as the file has it: the same fields, and those that name secrets."""

    model_config = ConfigDict(extra="forbid")

    owner: str = "(file)"
    receiver: None = None
    slack: SecretAddress | None = None
    teams: SecretAddress | None = None
    pagerduty: RoutingKey | None = None
    ntfy: SecretAddress | None = None
    secrets: tuple[SecretReference, ...] = ()

    @model_validator(mode="after")
    def _has_one_receiver(self) -> Self:
        fields = (self.webhook_url, self.email, self.slack, self.teams, self.pagerduty, self.ntfy)
        if sum(it is not None for it in fields) != 1:
            raise ValueError(
                "give one receiver: webhookUrl, email, slack, teams, pagerduty or ntfy"
            )
        if self.pagerduty is not None and self.digest is not None:
            raise ValueError(NO_DIGEST)
        return self

    @property
    def kind(self) -> ReceiverKind:
        """The kind of its receiver."""
        kinds = (ReceiverKind.SLACK, ReceiverKind.TEAMS, ReceiverKind.PAGERDUTY, ReceiverKind.NTFY)
        named = (self.slack, self.teams, self.pagerduty, self.ntfy)
        found = (kind for kind, it in zip(kinds, named, strict=True) if it is not None)
        return next(found, super().kind)

    @field_validator("events")
    @classmethod
    def _are_known(cls, events: tuple[AlertEvent, ...]) -> tuple[AlertEvent, ...]:
        if AlertEvent.UNKNOWN in events:
            known = ", ".join(it for it in AlertEvent if it is not AlertEvent.UNKNOWN)
            raise ValueError(f"the event is unknown; choose one of {known}")
        return events


class SubscriptionsFile(Model):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    subscriptions: tuple[FileSubscription, ...]


def read_subscriptions(data: bytes, environment: Environment) -> dict[str, Entry]:
    """The entries of a file. Raises Rejected with all that is wrong, by line."""
    try:
        _, root = read_document(data)
    except ProtocolError as error:
        raise _rejected(list(error.problems)) from None
    try:
        found = SubscriptionsFile.model_validate(root.value).subscriptions
    except ValidationError as error:
        raise _rejected([problem_at(root, it["loc"], it["msg"]) for it in error.errors()]) from None
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    for number, subscription in enumerate(found):
        place = ("subscriptions", number)
        try:
            secrets = tuple(_signing_secret(it, environment) for it in subscription.secrets)
            receiver = _receiver(subscription, environment)
        except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
            where = "secrets" if subscription.secrets else subscription.kind.value
            problems.append(problem_at(root, (*place, where), str(error)))
            continue
        ident = f"file/{subscription.id}"
        if ident in entries:
            problems.append(problem_at(root, (*place, "id"), "another subscription has this id"))
        entries[ident] = _entry(ident, subscription, receiver, secrets)
    if problems:
        raise _rejected(problems)
    return entries


def _entry(
    ident: str,
    written: FileSubscription,
    receiver: tuple[SealedReceiver, Target] | None,
    secrets: tuple[str, ...],
) -> Entry:
    fields = written.model_dump(include=set(Subscription.model_fields)) | {"id": ident}
    sealed, target = receiver or (None, None)
    subscription = Subscription.model_validate(fields | {"receiver": sealed})
    content = subscription.model_dump_json() + (f"{target.url} {target.token}" if target else "")
    version = hashlib.sha256(content.encode()).hexdigest()[:16]
    return Entry(subscription, version, secrets, target)


def _receiver(
    written: FileSubscription, environment: Environment
) -> tuple[SealedReceiver, Target] | None:
    """A receiver whose address is a secret; None for a webhook or a mail address."""
    if written.pagerduty is not None:
        key = _secret(written.pagerduty.routing_key, environment)
        return _sealed(ReceiverKind.PAGERDUTY, Target(written.pagerduty.url, key))
    for kind, address in (
        (ReceiverKind.SLACK, written.slack),
        (ReceiverKind.TEAMS, written.teams),
        (ReceiverKind.NTFY, written.ntfy),
    ):
        if address is not None:
            token = _secret(address.token, environment) if address.token else ""
            return _sealed(kind, Target(_secret(address.url, environment), token))
    return None


def _sealed(kind: ReceiverKind, target: Target) -> tuple[SealedReceiver, Target]:
    return SealedReceiver(kind=kind, host=urlsplit(target.url).hostname or "", sealed=""), target


def _signing_secret(reference: SecretReference, environment: Environment) -> str:
    secret = _secret(reference, environment)
    if not is_signing_secret(secret):
        where = _place(reference)
        raise ValueError(f"{where} has no secret: whsec_ and 24 to 64 bytes in base64")
    return secret


def _secret(reference: SecretReference, environment: Environment) -> str:
    if reference.env is not None:
        secret = environment.get(reference.env, "")
    else:
        assert reference.file is not None
        secret = reference.file.read_text().strip()
    if not secret:
        raise ValueError(f"{_place(reference)} is empty or missing")
    return secret


def _place(reference: SecretReference) -> str:
    if reference.env is not None:
        return f"the environment variable {reference.env}"
    return str(reference.file)


def _rejected(problems: list[Problem]) -> Rejected:
    lines = "; ".join(f"line {it.line}: {it.path}: {it.message}" for it in problems)
    return Rejected("InvalidSubscriptions", lines, tuple(problems))


class FileWatcher:
    """Checks the file and passes its subscriptions on when it has changed."""

    def __init__(
        self,
        path: Path,
        use: Callable[[Mapping[str, Entry]], None],
        metrics: AlertingMetrics,
        poll_s: float,
    ) -> None:
        self._path = path
        self._use = use
        self._metrics = metrics
        self._poll_s = poll_s
        self._looked_at: tuple[int, int] | str | None = "never"

    def look(self) -> None:
        """Read the file if it has changed since the last look."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            mark = None
        if mark == self._looked_at:
            return
        self._looked_at = mark
        try:
            entries = read_subscriptions(self._path.read_bytes(), os.environ)
        except (OSError, Rejected) as error:
            self._metrics.file_ok.set(0)
            _log.error(
                "the subscriptions file can't be used", file=str(self._path), reason=str(error)
            )
        else:
            self._metrics.file_ok.set(1)
            self._use(entries)
            _log.info("subscriptions were read", file=str(self._path), count=len(entries))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._poll_s)
