"""The subscriptions, in memory: from REST by way of the bus, and from the operator's file.

Those from the bus are kept in the database too, so that they are known at a start before the bus
was read, or when it was thrown away.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import SUBSCRIPTION_SETTING, Subscription
from muster.newest import Newest
from muster.records import Received
from muster.webhook_secrets import signing_secret
from pydantic import SecretStr, ValidationError

from alerting.metrics import AlertingMetrics

_log = structlog.get_logger()

NUL = "\\u0000"
"""The character, as JSON has it."""


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """A subscription. ``version`` changes with it; ``secrets`` are its own, where it has any."""

    subscription: Subscription
    version: str
    secrets: tuple[str, ...] = ()


class Subscriptions:
    """All subscriptions. ``changed`` is set when one from the bus is to be kept."""

    def __init__(self, key: SecretStr, metrics: AlertingMetrics) -> None:
        self._key = key
        self._metrics = metrics
        self._newest = Newest()
        self._settings: dict[str, SettingChanged] = {}
        self._from_bus: dict[str, Entry] = {}
        self._from_file: Mapping[str, Entry] = {}
        self._dirty: dict[str, SettingChanged | None] = {}
        self.changed = asyncio.Event()

    def entries(self) -> Iterable[Entry]:
        """Every subscription with its version."""
        return [*self._from_bus.values(), *self._from_file.values()]

    def entry(self, subscription: str) -> Entry | None:
        """One subscription; None where there is none of this id."""
        return self._from_bus.get(subscription) or self._from_file.get(subscription)

    def secrets(self, entry: Entry) -> tuple[str, ...]:
        """The secrets that sign its webhooks, newest first.

        Raises ValueError where there is no key to make them from.
        """
        if entry.secrets:
            return entry.secrets
        key = self._key.get_secret_value()
        versions = entry.subscription.secret_versions
        return tuple(signing_secret(key, entry.subscription.id, it) for it in versions)

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting from the bus; those that are no subscriptions are nobody's business."""
        setting = record.key or ""
        if not setting.startswith(SUBSCRIPTION_SETTING) or not self._newest.is_news(record, model):
            return
        if isinstance(model, SettingChanged):
            if self.learn(model):
                self._dirty[setting] = model
                self.changed.set()
        elif self._settings.pop(setting, None) is not None:
            self._from_bus.pop(setting.removeprefix(SUBSCRIPTION_SETTING), None)
            self._dirty[setting] = None
            self.changed.set()
            self._count()

    def learn(self, setting: SettingChanged) -> bool:
        """Take a setting if it is newer than what is known; whether it was."""
        known = self._settings.get(setting.setting)
        if known is not None and known.revision >= setting.revision:
            return False
        try:
            subscription = Subscription.model_validate(setting.value)
        except ValidationError as error:
            place = ".".join(str(step) for step in error.errors()[0]["loc"])
            _log.error("a subscription can't be used", setting=setting.setting, field=place)
            return False
        if setting.setting != SUBSCRIPTION_SETTING + subscription.id or not _can_be_kept(setting):
            _log.error(
                "a subscription can't be used", setting=setting.setting, field="id, revision"
            )
            return False
        self._newest.note(setting.setting, setting.revision)
        self._settings[setting.setting] = setting
        self._from_bus[subscription.id] = Entry(subscription, str(setting.revision))
        self._count()
        return True

    def use_file(self, entries: Mapping[str, Entry]) -> None:
        """These are the file's subscriptions now; what waits for those that are gone is dropped."""
        for gone in self._from_file.keys() - entries.keys():
            self._dirty[SUBSCRIPTION_SETTING + gone] = None
            self.changed.set()
        self._from_file = entries
        self._count()

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
        self._metrics.subscriptions.labels("bus").set(len(self._from_bus))
        self._metrics.subscriptions.labels("file").set(len(self._from_file))


def _can_be_kept(setting: SettingChanged) -> bool:
    """PostgreSQL takes no NUL character."""
    return NUL not in setting.model_dump_json()
