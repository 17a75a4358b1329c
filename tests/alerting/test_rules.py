"""Event rules: their conditions, their check and trial, and the alerts that they make."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from alerting.conditions import Condition
from alerting.domain.event_rules import (
    FIELDS,
    JOB_FIELDS,
    MOST_AN_HOUR,
    PRESETS,
    By,
    EventRule,
    matches,
    shown,
    tried,
)
from alerting.domain.events import Event, JobLabels, Severity
from alerting.rules import Rules, after_trial, check, nearest_to_mute, rules_of
from muster.contracts.jobs import JobState
from muster.contracts.subscriptions import AlertEvent
from muster.contracts.verdicts import Behavior, Fault, Verdict
from rest_double import run_cli

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILED = {
    "name": "job-failed",
    "title": "Job ada~j FAILED",
    "job": {"user": "ada", "virtualCluster": "speech", "name": "j"},
    "data": {"job": "j1", "attempt": 2},
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 +", "can't be read"),
        ("event.name", None),
        ("1 + 1", "is no condition"),
        ("evnt.name == 'a'", "undeclared reference"),
        ("x" * 2000, "has more than 1000 characters"),
        ("(" * 300 + "true" + ")" * 300, "recursion limit"),
    ],
)
def test_a_condition_is_compiled_or_refused(text: str, fault: str | None) -> None:
    if fault is None:
        Condition(text)
        return
    with pytest.raises(ValueError, match=fault):
        Condition(text)


def test_conditions_read_events_within_bounds() -> None:
    assert Condition("event.job.user == 'ada' && event.data.attempt > 1").holds(FAILED)
    assert not Condition("has(event.data.verdict) && event.data.verdict.code > 1").holds(FAILED)
    with pytest.raises(ValueError, match="not found"):
        Condition("event.data.verdict.code > 1").holds(FAILED)
    long = "[" + ",".join("1" for _ in range(100)) + "]"
    endless = f"{long}.all(a, {long}.all(b, {long}.all(c, a + b + c > 0)))"
    with pytest.raises(ValueError, match="budget"):
        Condition(endless).holds(FAILED)


@pytest.mark.parametrize(
    "when",
    [
        "event.text == 'event.node' // not event.node",
        'event . job . user.size() > 1 && event.data.node != "event.x"',
        "event.exists(it, it == 'node') && event.job.exists(it, it == 'vc')",
        "timestamp(event.at).getHours('Europe/Berlin') < 8 && event['name'] != event.title",
    ],
)
def test_a_condition_may_read_every_field_that_events_have(when: str) -> None:
    content = yaml.safe_dump({"rules": [{"name": "a", "event": "job-failed", "when": when}]})
    assert check(content.encode()).problems == ()


def test_events_have_the_fields_that_conditions_may_read() -> None:
    of_job = JobLabels("ada", "speech", "j")
    event = Event("k", AlertEvent.JOB_FAILED, NOW, Severity.INFO, "t", "x", "j", {}, job=of_job)
    assert (shown(event).keys(), shown(event)["job"].keys()) == (FIELDS, JOB_FIELDS)


def test_a_rule_counts_by_subject_and_a_failing_one_is_an_alert() -> None:
    rule = EventRule("r", "job-failed", Severity.WARNING, lambda _: True, by=By.JOB)
    (match,) = matches([rule], [("k", FAILED)], NOW)
    assert match.alert.labels == {
        "rule": "r",
        "job": "j1",
        "user": "ada",
        "virtualCluster": "speech",
        "jobName": "j",
    }
    fails = EventRule("r", "job-failed", Severity.INFO, Condition("event.data.x == 1").holds)
    (failing,) = matches([fails], [("k", FAILED)], NOW)
    assert (failing.alert.name, failing.alert.labels) == ("RuleFails", {"rule": "r"})
    assert matches([rule], [("k", FAILED | {"name": "job-finished"})], NOW) == ()


def test_an_alert_about_a_job_names_it_as_people_do() -> None:
    event = {"title": "t", "data": {"job": "01m8"}, "job": {"user": "ada", "name": "train"}}
    alert = PRESETS[0].alert(event, NOW)
    assert alert.summary == "A job was retried three times within an hour (ada~train)"


def test_a_trial_says_how_often_a_rule_would_have_fired() -> None:
    rule = EventRule("r", "job-failed", Severity.INFO, lambda _: True, count=2, window_s=600)
    minutes = (0, 5, 6, 60, 65, 200)
    events = [(NOW + timedelta(minutes=it), FAILED) for it in minutes]
    trial = tried(rule, events)
    assert (trial.fired, trial.events, trial.failed) == (2, 6, 0)


def test_rules_that_flood_or_evaluate_nothing_are_refused_with_their_place() -> None:
    text = b"""rules:
- {name: floods, event: job-failed, when: event.title != '', by: job}
- {name: fails, event: job-failed, when: event.data.none == 1}
"""
    checked = check(text)
    events = [
        (NOW + timedelta(seconds=it), FAILED | {"data": {"job": f"j{it}"}})
        for it in range(MOST_AN_HOUR + 1)
    ]
    refused = after_trial(checked, [tried(rule, events) for rule, _ in checked.rules])
    assert refused.content is None
    assert [(it.path, it.line) for it in refused.problems] == [
        ("rules.0.when", 2),
        ("rules.1.when", 3),
    ]
    assert "would have fired 101 times" in refused.problems[0].message
    none = "could evaluate none of the last day's 101 events job-failed: "
    assert refused.problems[1].message.startswith(none)
    assert "has(event.…)" in refused.problems[1].message
    textual = check(text.replace(b"event.data.none == 1", b"event.title"))
    gives = after_trial(textual, [tried(rule, events) for rule, _ in textual.rules]).problems[1]
    assert gives.message == f"{none}is no condition: it gives a string, not true or false"
    held = check(text.split(b"- {name: fails")[0]).texts
    trials = [tried(rule, events) for rule, _ in checked.rules]
    left = after_trial(checked, trials, held)
    assert [it.path for it in left.problems] == ["rules.1.when"], "what holds may go on"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rules: [{name: a, event: job-failed, when: 'true'}]", "rules.0.when"),
        ("rules: [{name: a, event: job-failed, when: 'event.'}]", "rules.0.when"),
        ("rules: [{name: a, event: node-lost, when: event.node == 'vm'}]", "rules.0.when"),
        ("rules: [{name: a, event: node-lost, when: event.job.user == 'a'}]", "rules.0.when"),
        ("rules: [{name: a, event: job-failed, when: event.job.vc == 'a'}]", "rules.0.when"),
        ("rules: [{name: a, event: alert-raised}]", "rules.0.event"),
        ("rules: [{name: a, event: nonsense}]", "rules.0.event"),
        ("rules: [{name: a, event: job-failed, by: node}]", "rules.0.by"),
        ("rules: [{name: a, event: node-lost, by: job}]", "rules.0.by"),
        ("rules: [{name: a, event: record-rejected, by: user}]", "rules.0.by"),
        ("rules: [{name: JobRetriedOften, event: job-failed}]", "rules.0.name"),
        ("rules: [{name: NodeLost, event: node-lost}]", "rules.0.name"),
        ("presetsOff: [Nothing]", "presetsOff.0"),
        ("presetsOff: [PreflightFailed]", "presetsOff.0"),
    ],
)
def test_wrong_rules_are_refused(text: str, place: str) -> None:
    assert [it.path for it in check(text.encode()).problems] == [place]


@pytest.mark.parametrize(
    ("do", "counted", "fix"),
    [
        ("cordon", "node-lost, by: nothing", "give the rule `by: node`"),
        ("cordon", "job-failed, by: job", "leave them out, or choose another action"),
        ("stop-job", "job-failed, by: user", "give the rule `by: job`"),
        ("cordon", "node-lost, by: node", None),
        ("tag-job", "job-failed, by: job", None),
    ],
)
def test_an_action_needs_rules_whose_alerts_name_what_it_acts_on(
    do: str, counted: str, fix: str | None
) -> None:
    text = f"""rules: [{{name: Own, event: {counted}}}]
actions:
- {{name: a, alerts: ["Gpu*", Own], do: {do}}}
"""
    what = "node" if do == "cordon" else "job"
    fault = f"alerts Own name no {what}, which {do} needs: {fix}"
    found = check(text.encode()).problems
    wanted = [] if fix is None else [("actions.0.alerts.1", 3, fault)]
    assert [(it.path, it.line, it.message) for it in found] == wanted


@pytest.mark.parametrize(
    ("do", "alerts", "places"),
    [
        ("cordon", "GpuXid, JobStuck, JobWaitsLong, AccountingDrifted, NodeLost", [1, 2, 3]),
        ("stop-job", "JobStuck, GpuXid, NodeLost, RecordsRejected, JobRetriedOften", [1, 2, 3]),
        ("drain", "JobRetriedOften, PreflightFailed, Other, JobGpusIdle", [0]),
    ],
)
def test_an_action_on_alerts_of_muster_that_name_no_target_is_refused(
    do: str, alerts: str, places: list[int]
) -> None:
    text = f"actions: [{{name: a, alerts: [{alerts}], do: {do}, mode: 'on'}}]"
    problems = check(text.encode()).problems
    assert [it.path for it in problems] == [f"actions.0.alerts.{it}" for it in places]
    for it in problems:
        assert it.message.endswith("needs: leave them out, or choose another action")


def test_presets_hold_until_they_are_switched_off() -> None:
    assert [it.name for it in rules_of({}).events] == ["JobRetriedOften"]
    own = {"rules": [{"name": "JobRetriedOften", "event": "job-retried"}]}
    (rule,) = rules_of(own | {"presetsOff": ["JobRetriedOften"]}).events
    assert rule.count == 1


VERDICT = Verdict(
    code=7, phrase="Failed", rule="r", fault=Fault.USER, behavior=Behavior.PERMANENT, cause="why"
)
RULES = """rules:
- name: SpeechFails
  event: job-failed
  when: event.job.virtualCluster == 'speech' && event.data.verdict.code == 7
  count: 2
  by: user
  severity: critical
  windowSeconds: %s
  runbook: https://runbook.example
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GpuXid", None),
        ("job-retried", None),
        ("JobRetriedOften", None),
        ("PreflightFailed", None),
        ("NodeClockOff", None),
        ("JobGpusIdle", None),
        ("MetricMissing", None),
        ("0123456789abcdef", None),
        ("gpuxid", ["GpuXid"]),
        ("GpuMising", ["GpuMissing"]),
        ("JobRetryedOften", ["JobRetriedOften"]),
        ("GpuXidFatall", ["GpuXidFatal"]),
        ("unknown", []),
        ("Zzzz", []),
    ],
)
def test_a_name_that_nobody_knows_has_nearest_ones(name: str, expected: list[str] | None) -> None:
    found = nearest_to_mute(name, Rules(), ["NodeClockOff"])
    assert (found and found[:1]) == expected


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_rule_is_tried_set_fires_and_is_over(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    speech = {"virtual_cluster": "speech", "verdict": VERDICT}
    path = "/api/v2/alerts/rules"
    async with with_rest() as api:
        for number in range(2):
            await cluster.job(f"before-{number}", 1, JobState.FAILED, **speech)
        await cluster.job("other", 1, JobState.FAILED)
        await cluster.until("SELECT count(*) FROM recent_event", [(3,)])
        tried_ = await api.admin.post(f"{path}/check", content=RULES % 600)
        assert tried_.json()["trial"] == [
            {"rule": "SpeechFails", "fired": 1, "events": 2, "failed": 0}
        ]
        assert await api.alerts() == []  # a trial changes nothing
        made = await api.admin.put(path, content=RULES % 2)
        assert made.status_code == 202, made.text
        await api.until_fails_fire("SpeechFails", cluster, **speech)
        (alert,) = await api.alerts(name="SpeechFails")
        assert (alert["source"], alert["severity"]) == ("rule", "critical")
        assert alert["labels"] == {"rule": "SpeechFails", "user": "ada"}
        assert alert["runbook"] == "https://runbook.example"
        await api.until_alerts([("resolved",)], "state", name="SpeechFails")
        for attempt in range(1, 5):
            await cluster.job("r", attempt, JobState.RUNNING, attempt=attempt)
        await api.until_alerts([("firing",)], "state", name="JobRetriedOften", job="r")
        await cluster.job("odd", 1, JobState.FAILED, virtual_cluster="speech")
        await api.until_alerts([("warning",)], "severity", name="RuleFails")


@pytest.mark.postgres
@pytest.mark.kafka
async def test_an_alert_ends_with_its_rule(cluster: Any, with_rest: Callable[..., Any]) -> None:
    path = "/api/v2/alerts/rules"
    async with with_rest() as api:
        rule = b"rules: [{name: Fails, event: job-failed, windowSeconds: 86400}]"
        assert (await api.admin.put(path, content=rule)).status_code == 202
        await api.until_fails_fire("Fails", cluster)
        for attempt in range(1, 5):
            await cluster.job("r", attempt, JobState.RUNNING, attempt=attempt)
        await api.until_alerts([("firing",)], "state", name="JobRetriedOften")
        off = b"presetsOff: [JobRetriedOften]"
        assert (await api.admin.put(path, content=off)).status_code == 202
        await api.until_alerts([("resolved",)], "state", name="Fails")
        (ended,) = await cluster.received("alert-resolved", 1)
        assert ended["summary"] == "Fails: Job ada~train FAILED (its rule is removed)"
        (preset,) = await api.alerts(name="JobRetriedOften")
        assert preset["state"] == "firing", "what is switched off goes on to its end"


@pytest.mark.postgres
@pytest.mark.kafka
async def test_the_rules_that_are_shown_can_be_set_again(
    with_rest: Callable[..., Any], tmp_path: Path
) -> None:
    async with with_rest() as api:
        token = api.admin.headers["Authorization"].removeprefix("Bearer ")

        async def muster(*words: str, text: str = "") -> str:
            server = {"MUSTER_URL": api.url, "MUSTER_TOKEN": token}
            ran = await asyncio.to_thread(run_cli, tmp_path, *words, text=text, **server)
            assert ran.code == 0, ran.err
            return ran.out

        assert await muster("alerts", "rules") == "# version 0: nothing was set ever\n"
        await muster("alerts", "rules", "-", "--comment", "why", text=RULES % 600)
        shown = await muster("alerts", "rules")
        assert shown.startswith("# version 1, set by admin at ")
        assert shown.splitlines()[0].endswith(": why")
        checked = await muster("alerts", "rules", "-", "--check", text=shown)
        assert checked.startswith("The rules can be set.\n")
        await muster("alerts", "rules", "-", text=shown)
        again = json.loads(await muster("alerts", "rules", "-o", "json"))
        assert (again["version"], again["content"]) == (2, yaml.safe_load(RULES % 600))
        await muster("alerts", "rules", "-", text="presetsOff: [JobRetriedOften]")
        back = await muster("alerts", "rules", "rollback", "1", "--comment", "too quiet")
        assert back.startswith("Version 4 of the rules holds.\n")
        assert yaml.safe_load(await muster("alerts", "rules")) == again["content"]
        newest, first = (await muster("alerts", "rules", "versions", "--limit", "2")).split("\n")[
            1:3
        ]
    assert newest.split()[0] == "4"
    assert newest.endswith("admin  rollback to 1  too quiet")
    assert first.split()[0] == "3"


@pytest.mark.postgres
@pytest.mark.kafka
async def test_an_action_on_an_alert_that_nobody_knows_is_set_with_a_note(
    with_rest: Callable[..., Any], tmp_path: Path
) -> None:
    names = ("GpuXidd", "Gpu*", "GpuMissing", "JobGpusIdle", "Own", "Zzzz", "job-failed")
    text = f"""
rules: [{{name: Own, event: node-lost, by: node}}]
actions: [{{name: a, alerts: [{", ".join(names)}], do: drain}}]
"""
    hint = "Did you mean GpuXid or GpuXidFatal or GpuXidProgram?"
    notes = [
        f"Action a: no alert is known by the name GpuXidd. {hint}"
        " It acts once there is such an alert.",
        "Action a: no alert is known by the name Zzzz. It acts once there is such an alert.",
        "Action a: no alert is known by the name job-failed. Did you mean ManyJobsFail?"
        " It acts once there is such an alert.",
    ]
    async with with_rest() as api:
        path = "/api/v2/alerts/rules"
        checked = await api.admin.post(f"{path}/check", content=text)
        assert checked.json()["notes"] == notes
        made = await api.admin.put(path, content=text)
        assert (made.status_code, made.json()["notes"]) == (202, notes)
        assert (await api.admin.put(path, content=RULES % 600)).json()["notes"] == []
        back = await api.admin.post(f"{path}/rollback", json={"version": 1})
        assert (back.status_code, back.json()["notes"]) == (202, notes)
        token = api.admin.headers["Authorization"].removeprefix("Bearer ")
        server = {"MUSTER_URL": api.url, "MUSTER_TOKEN": token}
        words = ("alerts", "rules", "rollback", "1")
        ran = await asyncio.to_thread(run_cli, tmp_path, *words, **server)
        assert [ran.err.count(note) for note in notes] == [1, 1, 1], ran.err
        until = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        mute = {"alert": "GpuXidd", "until": until}
        muted = await api.admin.post("/api/v2/alerts/mutes", json=mute)
        assert muted.json()["note"] == (
            f"No alert or event is known by the name GpuXidd. {hint} The mute holds all the same."
        )


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_refusal_of_the_whole_file_names_no_empty_field(
    with_rest: Callable[..., Any],
) -> None:
    async with with_rest() as api:
        refused = await api.admin.put("/api/v2/alerts/rules", content="rules: [")
    assert refused.status_code == 400
    assert "Line 1: This is not YAML" in refused.json()["message"]
