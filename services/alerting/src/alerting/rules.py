"""The operators' rules: a text's check with the place of each fault, and what holds now, as REST
has published it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

import structlog
from muster.contracts.alerts import (
    ALERT_RULES_SETTING,
    REPAIR_TIMEOUT_S,
    REPAIRS,
    ActionName,
    AlertRulesConfig,
    Do,
)
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import AlertEvent
from muster.errors import Problem
from muster.newest import Newest
from muster.protocol.document import Limits as FileLimits
from muster.protocol.document import Node, read_document
from muster.protocol.preflights import check_preflight
from muster.protocol.problems import ProtocolError, split_path
from muster.records import Received
from pydantic import ConfigDict, Field, ValidationError

from alerting.conditions import EVENT, MISSING, Condition, fields_read
from alerting.domain import clashes, deadletters, drifts, event_rules, health, jobs, nodes
from alerting.domain.actions import ABOUT_ACTIONS, FAILURES, ON_NODES, ActionRule, Limits
from alerting.domain.deliveries import ALERTS
from alerting.domain.event_rules import MOST_AN_HOUR, PRESETS, By, EventRule, Trial, can_count
from alerting.domain.events import Severity
from alerting.places import problem_at
from alerting.prometheus_rules import NAMES as OF_PROMETHEUS

T = TypeVar("T")

_log = structlog.get_logger()

SETTINGS = "settings-changed"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
FILE = FileLimits("a file of rules", 256 * 1024, 5_000)

LISTS = frozenset({"rules", "presetsOff", "actions"})
IDENTITY = re.compile(r"[0-9a-f]{16}")
"""Of an alert, Muster's own or Alertmanager's."""
JOB = ("job",)
MOST_OF_JOB = 20
"""Faults of a preflight job that are named."""

OWN_ALERTS = (
    health.NAMES
    | ABOUT_ACTIONS
    | {
        jobs.STUCK,
        jobs.WAITS_LONG,
        nodes.LOST,
        drifts.DRIFTED,
        clashes.CLASHED,
        deadletters.RECORDS_REJECTED,
    }
)
"""Alerts that Muster raises without a rule."""
ABOUT_JOBS = frozenset({jobs.STUCK, jobs.WAITS_LONG}) | {
    it.name for it in PRESETS if it.by is By.JOB
}
ABOUT_NODES = health.NAMES | {nodes.LOST, clashes.CLASHED, *FAILURES.values()}
ABOUT_NEITHER = frozenset(
    {drifts.DRIFTED, deadletters.RECORDS_REJECTED, event_rules.FAILS, event_rules.FLOODS}
)
CAN_BE_OFF = OWN_ALERTS | {it.name for it in PRESETS}

NEAR = 3
"""The most names that are suggested."""

Pattern = Annotated[str, Field(min_length=1, max_length=255)]


class _Strict(Model):
    model_config = ConfigDict(extra="forbid")


class ActionText(_Strict):
    """An action as operators write it."""

    name: Annotated[str, Field(pattern=NAME)]
    alerts: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)]
    labels: dict[str, Pattern] = {}
    do: ActionName
    after_seconds: Annotated[float, Field(ge=0, le=7 * 86_400)] = 0.0
    mode: Literal["dry-run", "on"] = "dry-run"
    take_back: bool = True
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = REPAIR_TIMEOUT_S
    job: dict[str, Any] | None = None

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
            timeout_s=self.timeout_seconds if self.do in REPAIRS else 0.0,
        )


class EventRuleText(_Strict):
    """An event rule as operators write it."""

    name: Annotated[str, Field(pattern=NAME)]
    event: AlertEvent
    when: str | None = None
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    window_seconds: Annotated[float, Field(ge=1, le=86_400)] = 3600.0
    by: By = By.NOTHING
    severity: Severity = Severity.WARNING
    summary: Annotated[str, Field(max_length=500)] | None = None
    runbook: Annotated[str, Field(max_length=2048)] | None = None

    def rule(self) -> EventRule:
        """The same for decisions. Raises ValueError where the condition can't be compiled."""
        return EventRule(
            name=self.name,
            event=self.event.value,
            severity=self.severity,
            holds=_always if self.when is None else Condition(self.when).holds,
            count=self.count,
            window_s=self.window_seconds,
            by=self.by,
            runbook=self.runbook,
            summary=self.summary,
        )


def _always(_event: Mapping[str, Any]) -> bool:
    return True


class LimitsText(_Strict):
    """The limits of actions on nodes and jobs."""

    nodes_per_hour: Annotated[int, Field(ge=0, le=10_000)] = 2
    nodes_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    jobs_per_hour: Annotated[int, Field(ge=0, le=10_000)] = 5


class RulesText(_Strict):
    """The whole file."""

    rules: Annotated[tuple[EventRuleText, ...], Field(max_length=200)] = ()
    presets_off: tuple[str, ...] = ()
    actions: Annotated[tuple[ActionText, ...], Field(max_length=200)] = ()
    limits: LimitsText = LimitsText()


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds now. ``texts``: event rules as they were written, without presets; ``off``: the
    names of presets that are switched off.
    """

    events: tuple[EventRule, ...] = PRESETS
    actions: tuple[ActionRule, ...] = ()
    limits: Limits = field(default_factory=Limits)
    texts: tuple[EventRuleText, ...] = ()
    off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Checked:
    """Of a text: its content, or its faults. ``rules``: its event rules, each with its place;
    ``texts``: as they were written.
    """

    content: dict[str, Any] | None
    problems: tuple[Problem, ...] = ()
    rules: tuple[tuple[EventRule, Problem], ...] = ()
    texts: tuple[EventRuleText, ...] = ()


def check(data: bytes) -> Checked:
    """Whether a text can be set."""
    try:
        _, root = read_document(data, FILE)
    except ProtocolError as error:
        return Checked(None, tuple(error.problems))
    problems: list[Problem] = []
    try:
        numbered = _Numbered(RulesText.model_validate(root.value))
    except ValidationError as error:
        problems = [problem_at(root, it["loc"], it["msg"]) for it in error.errors()]
        numbered = _without(root.value, {it["loc"][:2] for it in error.errors()})
    problems += _faults(root, numbered)
    text = numbered.text
    rules: list[tuple[EventRule, Problem]] = []
    for number, each in numbered.of("rules", text.rules):
        try:
            rules.append((each.rule(), problem_at(root, ("rules", number, "when"), "")))
        except ValueError as error:
            problems.append(problem_at(root, ("rules", number, "when"), str(error)))
    problems.sort(key=lambda it: (it.line or 0, it.column or 0))
    content = root.value if isinstance(root.value, dict) else {}
    return Checked(None if problems else content, tuple(problems), tuple(rules), text.rules)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """What of a file can be read. ``numbers``: of the entries of its lists, as the file has them;
    a list that is not in it is whole.
    """

    text: RulesText
    numbers: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def of(self, key: str, entries: Sequence[T]) -> Iterable[tuple[int, T]]:
        """The entries with their numbers."""
        return zip(self.numbers.get(key, range(len(entries))), entries, strict=True)


def _without(value: Any, bad: Collection[tuple[int | str, ...]]) -> _Numbered:
    """The file without the places that can't be read: entries of lists, else whole fields. So the
    faults of the others are named at the same time.
    """
    kept = dict(value) if isinstance(value, dict) else {}
    numbers: dict[str, list[int]] = {}
    for place in bad:
        key = place[0] if place else ""
        if key not in LISTS or len(place) < 2:
            kept.pop(key, None)
    for key in LISTS & kept.keys():
        numbers[key] = [it for it in range(len(kept[key])) if (key, it) not in bad]
        kept[key] = [kept[key][it] for it in numbers[key]]
    return _Numbered(RulesText.model_validate(kept), numbers)


def after_trial(
    checked: Checked, trials: Sequence[Trial], held: Collection[EventRuleText] = ()
) -> Checked:
    """A text that would do harm is refused: its rules flood people, or can evaluate no event.
    ``held``: rules that hold now; amid a flood the others must be changeable.
    """
    found = []
    for (rule, place), text, trial in zip(checked.rules, checked.texts, trials, strict=True):
        fault = None
        if text in held:
            continue
        if trial.most_in_an_hour > MOST_AN_HOUR:
            fault = (
                f"would have fired {trial.fired} times in the last day, {trial.most_in_an_hour}"
                f" of them within an hour; at most {MOST_AN_HOUR} are allowed: narrow the condition"
            )
        elif trial.failed and not trial.events:
            why = trial.failure or ""
            if why.startswith(MISSING):
                why += "; ask has(event.…) before a field that may be missing"
            fault = (
                f"could evaluate none of the last day's {trial.failed} events {rule.event}: {why}"
            )
        if fault is not None:
            found.append(replace(place, message=fault))
    return Checked(None, tuple(found)) if found else checked


def _faults(root: Node, numbered: _Numbered) -> list[Problem]:
    found, text = [], numbered.text
    taken = set(CAN_BE_OFF - set(text.presets_off))
    for number, rule in numbered.of("rules", text.rules):
        place: tuple[str | int, ...] = ("rules", number)
        if rule.name in taken:
            fault = "another rule or preset has this name; presetsOff switches a preset off"
            found.append(problem_at(root, (*place, "name"), fault))
        taken.add(rule.name)
        if rule.event in (*ALERTS, AlertEvent.UNKNOWN):
            known = ", ".join(it for it in AlertEvent if it not in (*ALERTS, AlertEvent.UNKNOWN))
            found.append(problem_at(root, (*place, "event"), f"choose one of {known}"))
        elif not can_count(rule.event, rule.by):
            of = ", ".join(it for it in By if can_count(rule.event, it))
            fault = f"events {rule.event} name no {rule.by}: choose one of {of}"
            found.append(problem_at(root, (*place, "by"), fault))
        if rule.when is not None and (wrong := _fault_of_condition(rule.event, rule.when)):
            found.append(problem_at(root, (*place, "when"), wrong))
    for number, name in numbered.of("presetsOff", text.presets_off):
        if name not in CAN_BE_OFF:
            fault = f"there is no such preset; presets are {', '.join(sorted(CAN_BE_OFF))}"
            found.append(problem_at(root, ("presetsOff", number), fault))
    names: set[str] = set()
    for number, action in numbered.of("actions", text.actions):
        place = ("actions", number)
        if action.name in names:
            fault = "another action has this name; choose another one"
            found.append(problem_at(root, (*place, "name"), fault))
        names.add(action.name)
        found += [
            problem_at(root, (*place, *path), fault)
            for path, fault in (*_faults_of_job(action), *_faults_of_target(action, text.rules))
        ]
        if action.mode == "on" and any(not it.strip("*?") for it in action.alerts):
            fault = "matches every alert; name the alerts, or leave the mode at dry-run"
            found.append(problem_at(root, (*place, "alerts"), fault))
        if own := ABOUT_ACTIONS & set(action.alerts):
            fault = f"{min(own)} is about actions, and no rule acts on it: this would be a loop"
            found.append(problem_at(root, (*place, "alerts"), fault))
    return found


def _fault_of_condition(event: AlertEvent, when: str) -> str | None:
    """It reads no event, or a field that no event of this kind has."""
    if EVENT not in when:
        return "does not read `event`: it holds for all events or none. Leave it out for all"
    of_job = event_rules.JOB_FIELDS if event in event_rules.OF_JOBS else frozenset()
    for name, next_name in fields_read(when):
        if name not in event_rules.FIELDS:
            known = ", ".join(sorted(event_rules.FIELDS))
            return f"reads event.{name}, which is no field: events {event} have {known}"
        if name == "job" and next_name and next_name not in of_job:
            known = ", ".join(sorted(of_job)) or "no field of a job"
            return f"reads event.job.{next_name}, which is no field: events {event} have {known}"
    return None


def _faults_of_job(action: ActionText) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the preflight job of an action."""
    if Do(action.do) is not Do.RELEASE:
        return [] if action.job is None else [(("job",), "is only for the action release")]
    if action.job is None:
        return [((), "needs `job`, the preflight job as a job file has it")]
    try:
        check_preflight(action.job)
    except ProtocolError as error:
        return [((*JOB, *split_path(it.path)), it.message) for it in error.problems[:MOST_OF_JOB]]
    return []


def _faults_of_target(
    action: ActionText, rules: Iterable[EventRuleText]
) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """Alerts of these rules, and of Muster itself, that name nothing that the action could act
    on.
    """
    do = Do(action.do)
    by, others = (By.NODE, ABOUT_JOBS) if do in ON_NODES else (By.JOB, ABOUT_NODES)
    of_rules = {it.name: it for it in rules}
    for number, name in enumerate(action.alerts):
        rule = of_rules.get(name)
        if rule.by is by if rule is not None else name not in others | ABOUT_NEITHER:
            continue
        fix = "leave them out, or choose another action"
        if rule is not None and can_count(rule.event, by):
            fix = f"give the rule `by: {by}`"
        yield ("alerts", number), f"alerts {name} name no {by}, which {do} needs: {fix}"


def rules_of(content: dict[str, Any]) -> Rules:
    """The rules of a checked content. Raises ValueError."""
    text = RulesText.model_validate(content)
    of = text.limits
    limits = Limits(of.nodes_per_hour, of.nodes_share, of.jobs_per_hour)
    presets = [each for each in PRESETS if each.name not in text.presets_off]
    return Rules(
        (*presets, *(each.rule() for each in text.rules)),
        tuple(each.rule() for each in text.actions),
        limits,
        text.rules,
        frozenset(text.presets_off),
    )


def nearest_to_mute(name: str, rules: Rules, seen: Iterable[str]) -> list[str] | None:
    """Among the names of alerts and events; None: it is one of them, or an identity."""
    events = set(AlertEvent) - {AlertEvent.UNKNOWN}
    return None if IDENTITY.fullmatch(name) else nearest(name, rules, events.union(seen))


def nearest(name: str, rules: Rules, seen: Iterable[str]) -> list[str] | None:
    """The names of alerts that are most like one; None: it is one of them. ``seen``: those of
    alerts that fired lately, also of other programs.
    """
    own = {*OWN_ALERTS, *FAILURES.values(), event_rules.FAILS, event_rules.FLOODS}
    known = own.union(OF_PROMETHEUS, (it.name for it in rules.events), seen)
    if name in known:
        return None
    by_letters = {it.lower(): str(it) for it in sorted(known)}
    return [by_letters[it] for it in get_close_matches(name.lower(), by_letters, NEAR)]


def unknown_alerts(content: dict[str, Any], seen: Iterable[str]) -> list[dict[str, Any]]:
    """Of a checked content: the names of alerts that its actions wait for, and nobody knows."""
    rules = rules_of(content)
    seen = frozenset(seen)
    found = []
    for action in rules.actions:
        for name in action.alerts:
            is_name = not set(name) & set("*?[")
            if is_name and (near := nearest(name, rules, seen)) is not None:
                found.append({"action": action.name, "alert": name, "nearest": near})
    return found


class KnownRules:
    """The rules that hold, followed from the bus. Until ``is_known``, they only seem to be none:
    REST publishes them again on a new bus.
    """

    def __init__(self) -> None:
        self._newest = Newest()
        self.now = Rules()
        self.is_known = False

    @property
    def names(self) -> list[str] | None:
        """Of event rules, with the presets that are switched off: an alert of theirs goes on to its
        end. None: they are not known.
        """
        return [*(it.name for it in self.now.events), *self.now.off] if self.is_known else None

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting; only one is read here."""
        if record.key != ALERT_RULES_SETTING or not self._newest.is_news(record, model):
            return
        if not isinstance(model, SettingChanged):
            self.now, self.is_known = Rules(), True
            return
        try:
            self.now = rules_of(AlertRulesConfig.model_validate(model.value).content)
        except ValueError as error:  # a ValidationError is one
            # Of a newer version: what held before goes on.
            _log.error("the rules for alerts can't be used", reason=str(error)[:500])
            return
        self.is_known = True
        _log.info("rules for alerts hold", actions=len(self.now.actions))
