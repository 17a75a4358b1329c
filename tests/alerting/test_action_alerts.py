"""Alerts about actions: people hear once of what rules do, would do, or wait for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from alerting.domain.action_alerts import changes
from alerting.domain.actions import (
    ABOUT_ACTIONS,
    Action,
    ActionRule,
    Bounds,
    State,
    answered,
    decide,
)
from alerting.domain.events import Alert, Severity, Source
from alerting.domain.notices import events_of
from alerting.rules import check
from muster.contracts.alerts import Do, Outcome

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CORDON = ActionRule("quarantine", ("GpuXid",), Do.CORDON, {}, is_dry_run=False)
DRAIN = replace(CORDON, name="empty", do=Do.DRAIN)
DRY = replace(DRAIN, is_dry_run=True)


def xid(node: str, gpu: int = 0) -> Alert:
    labels = {"node": node, "gpu": str(gpu)}
    text = f"GPU {gpu} of node {node}: it fell off"
    return Alert("GpuXid", Severity.CRITICAL, text, labels, NOW, cause=f"node/{node}")


class History:
    """Looks at alerts and actions, one after the other."""

    def __init__(self, *rules: ActionRule, bounds: Bounds | None = None) -> None:
        self.rules = rules
        self.bounds = bounds or Bounds(100, 100, 100)
        self.actions: dict[str, Action] = {}
        self.told: dict[str, Alert] = {}
        self.now = NOW
        self.off: set[str] = set()

    def look(self, *alerts: Alert) -> list[Alert]:
        """What begins and ends by one look, while these alerts fire."""
        self.now += timedelta(seconds=1)
        firing = (*alerts, *self.told.values())
        for it in decide(self.rules, self.bounds, firing, self.actions.values(), now=self.now):
            self.actions[it.action] = it
        found = changes(
            self.rules,
            self.actions.values(),
            {(it.fingerprint, it.starts_at): it for it in firing},
            now=self.now,
            off=self.off,
        )
        for alert in found:
            if alert.ends_at is None:
                self.told[alert.fingerprint] = alert
            else:
                del self.told[alert.fingerprint]
        return list(found)

    def answer(self) -> "History":
        """REST has done all that it was asked for."""
        for key, it in self.actions.items():
            if it.state is State.REQUESTED:
                outcome = Outcome.DRY_RUN if it.is_dry_run else Outcome.DONE
                self.actions[key] = answered(it, outcome, "as asked", now=self.now)
            elif it.state is State.UNDO_REQUESTED:
                self.actions[key] = answered(it, Outcome.UNDONE, "as asked", now=self.now)
        return self


def test_a_taken_node_is_told_once_in_its_incident_and_ends_when_it_is_back() -> None:
    history, bad = History(CORDON), (xid("n1"), xid("n1", gpu=7))
    assert history.look(*bad) == []
    (taken,) = history.answer().look(*bad)
    assert (taken.name, taken.severity, taken.labels) == (
        "NodeCordoned",
        Severity.WARNING,
        {"node": "n1"},
    )
    assert taken.summary.startswith("Rule quarantine has cordoned node n1. GPU ")
    assert taken.summary.endswith(" of node n1: it fell off")
    (raised,), (of_gpus,) = events_of([taken]), events_of(bad)
    assert raised.thread == of_gpus.thread
    assert raised.data["incident"] == of_gpus.data["incident"]
    assert history.look(bad[0]) == []  # one GPU is well again
    assert history.answer().look() == []  # the other one is to be taken back
    (back,) = history.answer().look()
    assert (back.fingerprint, back.ends_at) == (taken.fingerprint, history.now)


def test_a_drain_after_a_cordon_is_told_too() -> None:
    history, bad = History(CORDON, DRAIN), xid("n1")
    history.look(bad)
    told = history.answer().look(bad)
    assert {it.name for it in told} == {"NodeCordoned", "NodeDrained"}
    assert len(events_of(told)) == 1


def test_what_a_limit_holds_back_is_told_until_there_is_room() -> None:
    history = History(CORDON, bounds=Bounds(100, 1, 100))
    first, second = xid("n1"), xid("n2")
    (held,) = history.look(first, second)
    assert (held.name, held.labels) == ("ActionHeld", {"node": "n2", "rule": "quarantine"})
    assert held.summary == (
        "Rule quarantine does not cordon node n2 yet: `muster alerts actions` has the reason"
    )
    (taken,) = history.answer().look(first, second)
    assert taken.labels == {"node": "n1"}
    history.look(second)  # asks to take n1 back
    history.answer().look(second)
    history.answer().look(second)
    assert {(it.name, it.labels["node"]) for it in history.told.values()} == {
        ("NodeCordoned", "n2")
    }


def test_a_dry_run_is_told_while_its_alert_fires_and_its_rule_stands() -> None:
    history, bad = History(DRY), xid("n1")
    (would,) = history.look(bad)
    assert (would.name, would.severity) == ("ActionDryRun", Severity.INFO)
    assert would.summary.startswith("A dry run: rule empty would drain node n1. GPU 0")
    assert history.answer().look(bad) == []
    assert [it.ends_at is None for it in history.look()] == [False]
    history.look(bad)
    history.rules = (DRAIN,)
    assert [(it.name, it.ends_at is None) for it in history.look(bad)] == [("ActionDryRun", False)]


@pytest.mark.parametrize(
    ("rule", "name"), [(DRY, "ActionDryRun"), (CORDON, "ActionHeld")], ids=["dry-run", "held"]
)
def test_rules_that_are_taken_away_and_set_again_tell_once_more(
    rule: ActionRule, name: str
) -> None:
    history, bad = History(rule, bounds=Bounds(0, 100, 100)), xid("n1")
    (first,) = history.look(bad)
    history.rules = ()
    (ended,) = history.look(bad)
    history.rules = (rule,)
    (again,) = history.look(bad)
    assert [it.name for it in (first, ended, again)] == [name] * 3
    assert ended.ends_at is not None
    assert again.starts_at > ended.ends_at  # else its row would be the one that has ended
    assert history.look(bad) == []


def test_stages_that_wait_for_one_another_are_no_news() -> None:
    repair = replace(CORDON, name="reset", do=Do.REMEDIATE)
    back = replace(CORDON, name="back", do=Do.RELEASE)
    assert History(repair, back).look(xid("n1")) == []


def test_a_repair_that_is_not_repeated_yet_is_news() -> None:
    repair = replace(CORDON, name="reset", do=Do.REMEDIATE)
    history = History(CORDON, repair, bounds=Bounds(100, 100, 100, {"n1": 0}))
    told = []
    for alert in (xid("n1"), replace(xid("n1"), starts_at=NOW + timedelta(seconds=2))):
        for _ in range(3):  # it is taken, then repaired
            history.look(alert)
            history.answer()
        told.append({it.name for it in history.told.values()})
        history.look()
        history.answer().look()  # it is back
    assert told == [{"NodeCordoned"}, {"NodeCordoned", "ActionHeld"}]


def test_an_action_on_a_job_is_about_no_node_and_not_for_its_user() -> None:
    stop = replace(CORDON, do=Do.STOP_JOB, is_dry_run=True)
    labels = {"job": "01m8", "user": "ada", "virtualCluster": "vip", "jobName": "j"}
    alert = Alert("GpuXid", Severity.WARNING, "idle", labels, NOW)
    (would,) = History(stop).look(alert)
    assert would.labels == labels | {"rule": "quarantine"}
    assert would.summary.startswith("A dry run: rule quarantine would stop job ada~j")
    assert events_of([would])[0].job is None
    named = {"job": "scraped", "username": "ada", "job_name": "ada~j", "virtual_cluster": "vip"}
    (would,) = History(stop).look(replace(alert, labels=named, source=Source.ALERTMANAGER))
    assert would.labels == {name: it for name, it in labels.items() if name != "job"} | {
        "rule": "quarantine"
    }


def test_no_rule_acts_on_alerts_about_actions() -> None:
    every = replace(DRY, alerts=("*",))
    history = History(CORDON, replace(CORDON, name="loop", alerts=("Node*",)), every)
    for _ in range(5):
        history.look(xid("n1"))
        history.answer()
    assert {it.rule for it in history.actions.values()} == {"quarantine", "empty"}
    assert len(history.actions) == 2


def test_what_is_switched_off_does_not_begin() -> None:
    history = History(DRY)
    history.off = {"ActionDryRun"}
    assert history.look(xid("n1")) == []


@pytest.mark.parametrize("name", sorted(ABOUT_ACTIONS))
def test_a_rule_that_names_such_an_alert_is_refused(name: str) -> None:
    text = f"actions:\n- {{name: loop, alerts: [GpuXid, {name}], do: drain}}\n"
    (problem,) = check(text.encode()).problems
    assert (problem.path, problem.line) == ("actions.0.alerts", 2)
    assert "loop" in problem.message
    assert check(f"presetsOff: [{name}]".encode()).content
