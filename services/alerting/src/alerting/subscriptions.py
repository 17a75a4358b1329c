"""The subscriptions and the mail addresses that are to be confirmed, in memory: from REST by way of
the bus.

They are kept in the database too, so that they are known at a start before the bus was read, or
when it was thrown away.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from muster.codes import Code, confirmation_code, script_code
from muster.contracts.confirmations import CONFIRMATION_SETTING, Confirmation
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import ACCOUNT, SUBSCRIPTION_SETTING, Subscription
from muster.newest import Newest
from muster.receiver_secrets import open_receiver
from muster.records import Received
from muster.webhook_secrets import signing_secret
from pydantic import SecretStr, ValidationError

from alerting.domain.rendering.forms import Target
from alerting.metrics import AlertingMetrics

_log = structlog.get_logger()

NUL = "\\u0000"
"""The character, as JSON has it."""


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """A subscription. ``version`` changes with its content.

    An address that is to be confirmed is a receiver too: of one mail, and of no events.
    """

    subscription: Subscription
    version: str
    confirmation: Confirmation | None = None


class Subscriptions:
    """All subscriptions. ``changed`` is set when one is to be kept."""

    def __init__(self, key: SecretStr, metrics: AlertingMetrics) -> None:
        self._key = key
        self._metrics = metrics
        self._newest = Newest()
        self._settings: dict[str, SettingChanged] = {}
        self._known: dict[str, Entry] = {}
        self._to_confirm: dict[str, Entry] = {}
        self._dirty: dict[str, SettingChanged | None] = {}
        self.changed = asyncio.Event()

    def entries(self) -> Iterable[Entry]:
        """Every subscription with its version."""
        return list(self._known.values())

    def entry(self, subscription: str) -> Entry | None:
        """One subscription, or address to confirm; None where there is none of this id."""
        return self._known.get(subscription) or self._to_confirm.get(subscription)

    def code(self, confirmation: Confirmation) -> Code:
        """The code of a confirmation. Raises ValueError where there is no key to make it from."""
        return confirmation_code(self._key.get_secret_value(), confirmation)

    def script_code(self, action: str, until: datetime) -> Code:
        """The code with which a script answers. Raises ValueError where there is no key."""
        return script_code(self._key.get_secret_value(), action, until)

    def target(self, entry: Entry) -> Target:
        """Where its messages go, and what opens that. Raises ValueError where it can't be had."""
        subscription = entry.subscription
        sealed = subscription.receiver
        if sealed is None:
            return Target(subscription.webhook_url or "", secrets=self._secrets(subscription))
        key = self._key.get_secret_value()
        secret = open_receiver(key, subscription.id, sealed.sealed)
        return Target(secret.url, secret.token)

    def _secrets(self, subscription: Subscription) -> tuple[str, ...]:
        """The secrets that sign its webhooks, newest first.

        Raises ValueError where there is no key to make them from.
        """
        key = self._key.get_secret_value()
        versions = subscription.secret_versions
        return tuple(signing_secret(key, subscription.id, it) for it in versions)

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting from the bus: a subscription or an address to confirm."""
        setting = record.key or ""
        if not setting.startswith((SUBSCRIPTION_SETTING, CONFIRMATION_SETTING)):
            return
        if not self._newest.is_news(record, model):
            return
        if isinstance(model, SettingChanged):
            if self.learn(model):
                self._dirty[setting] = model
                self.changed.set()
        elif self._settings.pop(setting, None) is not None:
            self._known.pop(setting.removeprefix(SUBSCRIPTION_SETTING), None)
            self._to_confirm.pop(setting, None)
            self._dirty[setting] = None
            self.changed.set()
            self._count()

    def learn(self, setting: SettingChanged) -> bool:
        """Take a setting if it is newer than what is known, and another one; whether it was. The
        same at a higher revision, as after a change of the bus, keeps its version: a new one would
        enable a disabled receiver.
        """
        known = self._settings.get(setting.setting)
        if known is not None and known.revision >= setting.revision:
            return False
        try:
            entry, key = _entry(setting)
        except ValidationError as error:
            place = ".".join(str(step) for step in error.errors()[0]["loc"])
            _log.error("a subscription can't be used", setting=setting.setting, field=place)
            return False
        if setting.setting != key or not _can_be_kept(setting):
            _log.error(
                "a subscription can't be used", setting=setting.setting, field="id, revision"
            )
            return False
        self._newest.note(setting.setting, setting.revision)
        known_here = self._known if entry.confirmation is None else self._to_confirm
        before = known_here.get(entry.subscription.id)
        if before is not None and replace(entry, version=before.version) == before:
            return False
        self._settings[setting.setting] = setting
        known_here[entry.subscription.id] = entry
        self._count()
        return True

    def take_changes(self) -> dict[str, SettingChanged | None]:
        """What is to be kept in the database since the last call; None: removed."""
        self.changed.clear()
        changes, self._dirty = self._dirty, {}
        return changes

    def put_back(self, changes: Mapping[str, SettingChanged | None]) -> None:
        """These could not be kept: they are changes again, unless there are newer ones."""
        self._dirty = {**changes, **self._dirty}
        self.changed.set()

    def _count(self) -> None:
        accounts = sum(it.startswith(ACCOUNT) for it in self._known)
        self._metrics.subscriptions.set(len(self._known) - accounts)


def _entry(setting: SettingChanged) -> tuple[Entry, str]:
    """What a setting holds, and the key that belongs to it. Raises ValidationError."""
    version = str(setting.revision)
    if not setting.setting.startswith(CONFIRMATION_SETTING):
        subscription = Subscription.model_validate(setting.value)
        return Entry(subscription, version), SUBSCRIPTION_SETTING + subscription.id
    confirmation = Confirmation.model_validate(setting.value)
    key = CONFIRMATION_SETTING + confirmation.id
    to_confirm = Subscription(id=key, owner=confirmation.user, events=(), email=confirmation.email)
    return Entry(to_confirm, version, confirmation=confirmation), key


def _can_be_kept(setting: SettingChanged) -> bool:
    """PostgreSQL takes no NUL character."""
    return NUL not in setting.model_dump_json()
