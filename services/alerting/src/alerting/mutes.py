"""The mutes that stand, as REST has published them."""

from collections.abc import Iterable

import structlog
from muster.contracts.alerts import MUTE_SETTING, Mute
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.newest import Newest
from muster.records import Received
from pydantic import ValidationError

_log = structlog.get_logger()


class KnownMutes:
    """Followed from the bus."""

    def __init__(self) -> None:
        self._newest = Newest()
        self._mutes: dict[str, Mute] = {}

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting; only mutes are read here."""
        setting = record.key or ""
        if not setting.startswith(MUTE_SETTING) or not self._newest.is_news(record, model):
            return
        self._mutes.pop(setting, None)
        if isinstance(model, SettingChanged):
            try:
                self._mutes[setting] = Mute.model_validate(model.value)
            except ValidationError as error:
                _log.error("a mute can't be used", setting=setting, faults=error.error_count())

    def all(self) -> Iterable[Mute]:
        """Those that were not removed; their times may be over."""
        return self._mutes.values()
