"""The operators' rules: a text's check with the place of each fault, and what holds now, as REST
has published it.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import structlog
from muster.contracts.alerts import ALERT_RULES_SETTING, AlertRulesConfig, Do
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.errors import Problem
from muster.newest import Newest
from muster.protocol.document import Limits as FileLimits
from muster.protocol.document import Node, read_document
from muster.protocol.problems import ProtocolError
from muster.records import Received
from pydantic import ConfigDict, Field, ValidationError

from alerting.domain.actions import ActionRule, Limits
from alerting.places import problem_at

_log = structlog.get_logger()

SETTINGS = "settings-changed"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
FILE = FileLimits("a file of rules", 256 * 1024, 5_000)

Pattern = Annotated[str, Field(min_length=1, max_length=255)]


class _Strict(Model):
    model_config = ConfigDict(extra="forbid")


class ActionText(_Strict):
    """An action as operators write it."""

    name: Annotated[str, Field(pattern=NAME)]
    alerts: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)]
    labels: dict[str, Pattern] = {}
    do: Literal["cordon", "drain", "stop-job"]
    after_seconds: Annotated[float, Field(ge=0, le=7 * 86_400)] = 0.0
    mode: Literal["dry-run", "on"] = "dry-run"
    take_back: bool = True

    def rule(self) -> ActionRule:
        """The same for decisions."""
        return ActionRule(
            name=self.name,
            alerts=self.alerts,
            do=Do(self.do),
            labels=self.labels,
            after_s=self.after_seconds,
            is_dry_run=self.mode == "dry-run",
            takes_back=self.take_back,
        )


class LimitsText(_Strict):
    """The limits of actions on nodes."""

    nodes_per_hour: Annotated[int, Field(ge=0, le=10_000)] = 2
    nodes_share: Annotated[float, Field(ge=0, le=1)] = 0.1


class RulesText(_Strict):
    """The whole file."""

    actions: Annotated[tuple[ActionText, ...], Field(max_length=200)] = ()
    limits: LimitsText = LimitsText()


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds now."""

    actions: tuple[ActionRule, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Checked:
    """Of a text: its content, or its faults."""

    content: dict[str, Any] | None
    problems: tuple[Problem, ...] = ()


def check(data: bytes) -> Checked:
    """Whether a text can be set."""
    try:
        _, root = read_document(data, FILE)
    except ProtocolError as error:
        return Checked(None, tuple(error.problems))
    try:
        text = RulesText.model_validate(root.value)
    except ValidationError as error:
        return Checked(None, tuple(problem_at(root, it["loc"], it["msg"]) for it in error.errors()))
    problems = list(_faults(root, text))
    content = root.value if isinstance(root.value, dict) else {}
    return Checked(None if problems else content, tuple(problems))


def _faults(root: Node, text: RulesText) -> list[Problem]:
    found = []
    names: set[str] = set()
    for number, action in enumerate(text.actions):
        place = ("actions", number)
        if action.name in names:
            fault = "another action has this name; choose another one"
            found.append(problem_at(root, (*place, "name"), fault))
        names.add(action.name)
        if action.mode == "on" and any(not it.strip("*?") for it in action.alerts):
            fault = "matches every alert; name the alerts, or leave the mode at dry-run"
            found.append(problem_at(root, (*place, "alerts"), fault))
    return found


def rules_of(content: dict[str, Any]) -> Rules:
    """The rules of a checked content. Raises ValidationError."""
    text = RulesText.model_validate(content)
    limits = Limits(text.limits.nodes_per_hour, text.limits.nodes_share)
    return Rules(tuple(each.rule() for each in text.actions), limits)


class KnownRules:
    """The rules that hold, followed from the bus."""

    def __init__(self) -> None:
        self._newest = Newest()
        self.now = Rules()

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting; only one is read here."""
        if record.key != ALERT_RULES_SETTING or not self._newest.is_news(record, model):
            return
        if not isinstance(model, SettingChanged):
            self.now = Rules()
            return
        try:
            self.now = rules_of(AlertRulesConfig.model_validate(model.value).content)
        except ValidationError as error:
            # Of a newer version: what held before goes on.
            _log.error("the rules for alerts can't be used", faults=error.error_count())
            return
        self._newest.note(model.setting, model.revision)
        _log.info("rules for alerts hold", actions=len(self.now.actions))
