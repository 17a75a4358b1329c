"""Actions on alerts: which are decided, and how REST carries them out and takes them back."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain.actions import (
    Action,
    ActionRule,
    Bounds,
    State,
    alerts_of,
    answered,
    decide,
    events_of,
)
from alerting.domain.events import Alert, Severity
from alerting.domain.mutes import is_muted
from alerting.rules import check, rules_of
from muster.contracts.alerts import ALERT_RULES_SETTING, AlertRulesConfig, Do, Mute, Outcome
from muster.contracts.jobs import JobState, JobStatus
from muster.contracts.nodes import FOREIGN, Gpu, NodeReport, PodOnNode, ProblemKind
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import Subscription
from muster.contracts.verdicts import Behavior, Fault, Verdict
from preflight_rules import repairing

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RULE = ActionRule("bad-gpus", ("GpuXid",), Do.CORDON, {}, is_dry_run=False)
WIDE = Bounds(100, 100, 100)


def xid(node: str) -> Alert:
    return Alert("GpuXid", Severity.CRITICAL, f"{node} is bad", {"node": node}, NOW)


def decided(
    *alerts: Alert,
    rules: tuple[ActionRule, ...] = (RULE,),
    bounds: Bounds = WIDE,
    known: tuple[Action, ...] = (),
    now: datetime = NOW,
    pods: int = 0,
) -> tuple[Action, ...]:
    return decide(rules, replace(bounds, pods={"n1": pods}), alerts, known, now=now)


def done(*actions: Action) -> tuple[Action, ...]:
    return tuple(answered(it, Outcome.DONE, "done", now=NOW) for it in actions)


def test_an_action_is_decided_once_and_taken_back_when_the_alert_is_over() -> None:
    (asked,) = decided(xid("n1"))
    assert (asked.state, asked.target, asked.do) == (State.REQUESTED, "n1", Do.CORDON)
    assert decided(xid("n1"), known=(asked,)) == ()
    (again,) = decided(xid("n1"), known=(asked,), now=NOW + timedelta(minutes=2))
    assert again == replace(asked, asked_at=NOW + timedelta(minutes=2))  # no answer came
    known = done(asked)
    undone = replace(known[0], state=State.UNDONE)
    assert answered(undone, Outcome.UNDONE, "again", now=NOW + timedelta(minutes=2)) == undone
    assert decided(xid("n1"), known=known) == ()
    (back,) = decided(known=known)
    assert back.state is State.UNDO_REQUESTED
    kept = replace(RULE, takes_back=False)
    assert decided(rules=(kept,), known=known) == ()


def test_limits_count_nodes_and_hold_the_others_back() -> None:
    alerts = [xid(f"n{number}") for number in range(4)]
    states = [it.state for it in decided(*alerts, bounds=Bounds(2, 100, 100))]
    assert states == [State.REQUESTED] * 2 + [State.HELD] * 2
    found = decided(*alerts, bounds=Bounds(100, 1, 100))
    assert [it.state for it in found] == [State.REQUESTED] + [State.HELD] * 3
    later = NOW + timedelta(hours=2)
    known = (*done(*found[:1]), *found[1:])
    assert decided(*alerts, bounds=Bounds(100, 1, 100), known=known, now=later) == ()
    released = tuple(replace(it, state=State.UNDONE) for it in known[:1]) + known[1:]
    freed = decided(*alerts, bounds=Bounds(100, 1, 100), known=released, now=later)
    assert [it.state for it in freed][:1] == [State.REQUESTED]
    back = tuple(replace(it, state=State.UNDONE, at=NOW) for it in known[:1])
    again = replace(alerts[0], starts_at=NOW + timedelta(minutes=1))
    (none,) = decided(again, bounds=Bounds(0, 9, 9), known=back, now=again.starts_at)
    assert (none.state, "nodesPerHour is 0" in none.reason) == (State.HELD, True)


def test_a_dry_run_takes_no_node_and_a_loop_is_held() -> None:
    dry = replace(RULE, is_dry_run=True)
    found = decided(*(xid(f"n{it}") for it in range(3)), rules=(dry,), bounds=Bounds(1, 1, 100))
    assert [(it.state, it.is_dry_run) for it in found] == [(State.REQUESTED, True)] * 3
    stop = replace(RULE, do=Do.STOP_JOB)
    alert = Alert("GpuXid", Severity.CRITICAL, "bad", {"user": "ada", "jobName": "j"}, NOW)
    (first,) = done(*decided(alert, rules=(stop,)))
    again = replace(alert, starts_at=NOW + timedelta(minutes=5))
    changed = decided(again, rules=(stop,), known=(first,), now=NOW + timedelta(minutes=5))
    (held,) = [it for it in changed if it.starts_at == again.starts_at]
    assert held.state is State.HELD
    assert "loop" in held.reason


def test_a_node_that_turns_bad_again_is_taken_at_once_and_kept_for_an_hour() -> None:
    (first,) = done(*decided(xid("n1")))
    (back,) = decided(known=(first,))
    undone = answered(back, Outcome.UNDONE, "back", now=NOW)
    at = NOW + timedelta(minutes=5)
    other = replace(xid("n1"), labels={"node": "n1", "gpu": "1"}, starts_at=at)
    (again,) = decided(other, known=(undone,), now=at)
    assert (again.state, again.target) == (State.REQUESTED, "n1")
    known = (undone, answered(again, Outcome.DONE, "done", now=at))
    (waits,) = decided(known=known, now=NOW + timedelta(minutes=59))
    reason = "The alert is over. n1 is released at 2026-01-01 13:00:00 UTC, an hour after"
    assert waits == replace(known[1], reason=f"{reason} the node was last released.")
    known = (undone, waits)
    assert decided(known=known, now=NOW + timedelta(minutes=59)) == ()
    (later,) = decided(known=known, now=NOW + timedelta(minutes=61))
    assert (later.action, later.state) == (again.action, State.UNDO_REQUESTED)


def test_a_node_with_two_bad_gpus_is_held_until_both_are_good() -> None:
    gpus = [replace(xid("n1"), labels={"node": "n1", "gpu": gpu}) for gpu in "01"]
    first = done(*decided(gpus[0]))
    later = NOW + timedelta(minutes=5)
    (second,) = decided(*gpus, known=first, bounds=Bounds(1, 1, 100), now=later)
    assert (second.state, second.target) == (State.REQUESTED, "n1")
    known = (*first, *done(second))
    (back,) = decided(gpus[1], known=known, now=later)
    assert (back.action, back.state) == (first[0].action, State.UNDO_REQUESTED)
    undone = answered(back, Outcome.UNDONE, "n1: order cordon.", now=later)
    (last,) = decided(known=(undone, known[1]), now=later + timedelta(minutes=1))
    assert (last.action, last.state) == (second.action, State.UNDO_REQUESTED)  # it did not wait
    asked = decided(*gpus)
    assert [it.state for it in asked] == [State.REQUESTED] * 2


def test_an_alert_without_a_target_is_refused_and_jobs_are_named_by_user() -> None:
    stop = replace(RULE, do=Do.STOP_JOB, alerts=("Idle*",))
    idle = Alert("IdleGpus", Severity.WARNING, "idle", {"username": "ada", "job_name": "j"}, NOW)
    (action,) = decided(idle, rules=(stop,))
    assert action.target == "ada~j"
    (refused,) = decided(replace(idle, labels={}), rules=(stop,))
    assert (refused.state, refused.reason) == (
        State.REFUSED,
        "The alert's labels name no job of a user.",
    )


def test_only_so_many_jobs_are_stopped_in_an_hour() -> None:
    stop = replace(RULE, do=Do.STOP_JOB, alerts=("IdleGpus",))
    idle = [
        Alert("IdleGpus", Severity.WARNING, "idle", {"user": "ada", "jobName": name}, NOW)
        for name in "abc"
    ]
    bounds = Bounds(0, 1, 2)
    found = decided(*idle, rules=(stop,), bounds=bounds)
    assert [it.state for it in found] == [State.REQUESTED] * 2 + [State.HELD]
    assert found[2].reason == "2 jobs stopped within the last hour, the limit."
    known = (*done(*found[:2]), found[2])
    (third,) = decided(
        *idle, rules=(stop,), bounds=bounds, known=known, now=NOW + timedelta(minutes=61)
    )
    assert (third.action, third.state) == (found[2].action, State.REQUESTED)
    twenty = dict.fromkeys(map(str, range(20)), 0)
    assert rules_of({"limits": {"jobsPerHour": 7}}).limits.of(twenty) == Bounds(2, 2, 7, twenty)


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_job_that_has_ended_is_refused_whatever_the_limit(is_dry_run: bool) -> None:
    stop = replace(RULE, do=Do.STOP_JOB, alerts=("IdleGpus",), is_dry_run=is_dry_run)
    idle = Alert("IdleGpus", Severity.WARNING, "idle", {"user": "ada", "jobName": "j"}, NOW)
    for limit in (0, 100):
        bounds = Bounds(0, 1, limit, ended={"ada~j"})
        (action,) = decided(idle, rules=(stop,), bounds=bounds)
        assert (action.state, action.reason) == (State.REFUSED, "ada~j has ended.")


STOPS = """
rules: [{name: Fails, event: job-failed, by: job}]
actions: [{name: stop, alerts: [Fails], do: stop-job, mode: "on"}]
limits: {jobsPerHour: 0}
"""


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_limit_holds_back_running_jobs_alone(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest() as api:
        await cluster.job("zzz", 1, JobState.RUNNING, name="again")
        assert (await api.admin.put(PATH, content=STOPS)).status_code == 202
        await api.until_fails_fire("Fails", cluster, name="again")  # an earlier one of its name
        held = "SELECT DISTINCT state FROM action WHERE target = 'ada~again'"
        await cluster.until(held, [("held",)])
        await cluster.job("j1", 1, JobState.FAILED, name="over")
        refused = "SELECT state, reason FROM action WHERE target = 'ada~over'"
        await cluster.until(refused, [("refused", "ada~over has ended.")])
        told = await api.alerts(name="ActionHeld")
        assert {it["labels"]["jobName"] for it in told} == {"again"}
        await cluster.job("zzz", 2, JobState.SUCCEEDED, name="again")
        await cluster.until(held, [("refused",)])
        await api.until_alerts([], name="ActionHeld", state="firing")


def test_tags_have_no_limit() -> None:
    tag = replace(RULE, do=Do.TAG_JOB, alerts=("IdleGpus",))
    idle = [
        Alert("IdleGpus", Severity.WARNING, "idle", {"user": "ada", "jobName": name}, NOW)
        for name in "ab"
    ]
    found = decided(*idle, rules=(tag,), bounds=Bounds(0, 1, 0))
    assert [(it.state, it.target) for it in found] == [
        (State.REQUESTED, "ada~a"),
        (State.REQUESTED, "ada~b"),
    ]
    stop = replace(RULE, name="stop", do=Do.STOP_JOB, alerts=("IdleGpus",))
    known = done(*found)
    asked = decided(*idle, rules=(stop,), bounds=Bounds(0, 1, 1), known=known)
    assert [it.state for it in asked] == [State.REQUESTED, State.HELD]


REMEDIATE = replace(RULE, name="reset", do=Do.REMEDIATE, timeout_s=60.0)
BACK = replace(RULE, name="back", do=Do.RELEASE, timeout_s=60.0)
STAGES = (RULE, REMEDIATE, BACK)
SETTLED = NOW + timedelta(minutes=1)


def states(actions: Iterable[Action]) -> dict[str, tuple[State, str]]:
    """By rule."""
    return {it.rule: (it.state, it.reason) for it in actions}


def merged(*rounds: Iterable[Action]) -> tuple[Action, ...]:
    """Actions as they are after these rounds."""
    return tuple({it.action: it for each in rounds for it in each}.values())


def after(actions: Iterable[Action], rule: str, *outcomes: Outcome) -> tuple[Action, ...]:
    """The actions after these answers to a rule's."""
    found = list(actions)
    for outcome in outcomes:
        found = [
            answered(it, outcome, outcome.value, now=NOW) if it.rule == rule else it for it in found
        ]
    return tuple(found)


def remediated() -> tuple[Action, ...]:
    """A node is taken and empty, and its script runs."""
    wide = replace(WIDE, settles_s=30.0)
    first = decided(xid("n1"), rules=STAGES, bounds=wide, pods=2)
    assert states(first) == {
        "bad-gpus": (State.REQUESTED, "Requested."),
        "reset": (State.HELD, "No action has taken n1 yet."),
        "back": (State.HELD, "An alert of the node fires still."),
    }
    taken = after(first, "bad-gpus", Outcome.DONE)
    soon = decided(xid("n1"), rules=STAGES, bounds=wide, known=taken)
    assert states(soon) == {"reset": (State.HELD, "n1 was just taken.")}
    busy = decided(xid("n1"), rules=STAGES, bounds=wide, known=taken, now=SETTLED, pods=2)
    assert states(busy) == {"reset": (State.HELD, "n1 runs pods still.")}
    empty = decided(xid("n1"), rules=STAGES, bounds=wide, known=taken, now=SETTLED)
    assert states(empty) == {"reset": (State.REQUESTED, "Requested.")}
    return after(merged(taken, empty), "reset", Outcome.RUNNING)


def test_a_node_is_remediated_when_it_is_empty_and_comes_back_after_a_preflight_job() -> None:
    known = remediated()
    other = replace(xid("n1"), labels={"node": "n1", "gpu": "7"})
    twice = decided(xid("n1"), other, rules=(REMEDIATE, BACK), known=known, now=SETTLED)
    assert states(twice)["reset"][0] is State.REFUSED  # one script for one node
    (waits,) = decided(rules=STAGES, known=known, now=SETTLED)
    assert "(remediate) goes on" in waits.reason  # and the alert's end alone does not release it
    known = after(known, "reset", Outcome.DONE)
    (back,) = decided(rules=STAGES, known=known, now=SETTLED)
    (hold,) = [it.action for it in known if it.do is Do.CORDON]
    assert (back.rule, back.state, back.takes_back) == ("back", State.REQUESTED, (hold,))
    known = after(merged(known, (back,)), "back", Outcome.RUNNING)
    assert decided(rules=STAGES, known=known, now=SETTLED) == ()
    known = after(after(known, "back", Outcome.DONE), "bad-gpus", Outcome.UNDONE)
    assert decided(rules=STAGES, known=known, now=SETTLED) == ()


def test_a_release_waits_for_pods_that_hold_the_gpus_it_tests() -> None:
    known = done(*decided(xid("n1"), rules=(RULE,)))
    known = merged(known, decided(xid("n1"), rules=(RULE, BACK), known=known))
    busy = replace(WIDE, on_gpus={"n1"})
    (waits,) = decided(rules=(RULE, BACK), known=known, bounds=busy, pods=1)
    assert (waits.state, waits.reason) == (State.HELD, "n1 runs pods with GPUs still.")
    (back,) = decided(rules=(RULE, BACK), known=merged(known, (waits,)), pods=1)
    assert (back.do, back.state) == (Do.RELEASE, State.REQUESTED)


def test_a_release_that_waits_for_the_end_of_an_hour_says_when_that_is() -> None:
    (first,) = done(*decided(xid("n1")))
    released = answered(replace(first, state=State.UNDO_REQUESTED), Outcome.UNDONE, "", now=NOW)
    later = NOW + timedelta(minutes=5)
    again, rules = replace(xid("n1"), starts_at=later), (RULE, BACK)
    taken = decided(again, rules=rules, known=(released,), now=later)
    (order,) = [it for it in taken if it.do is Do.CORDON]
    known = merged((released,), taken, (answered(order, Outcome.DONE, "done", now=later),))
    (waits,) = decided(rules=rules, known=known, now=later)
    reason = "The preflight job starts at 2026-01-01 13:00:00 UTC, an hour after the node was"
    assert (waits.state, waits.reason) == (State.HELD, f"{reason} last released.")
    (back,) = decided(rules=rules, known=merged(known, (waits,)), now=NOW + timedelta(minutes=61))
    assert (back.do, back.state) == (Do.RELEASE, State.REQUESTED)


@pytest.mark.parametrize("failing", ["reset", "back"])
def test_a_failed_stage_keeps_the_node_out_and_is_not_repeated(failing: str) -> None:
    known = remediated()
    if failing == "back":
        known = after(known, "reset", Outcome.DONE)
        known = merged(known, decided(rules=STAGES, known=known, now=SETTLED))
    (before,) = [it for it in known if it.rule == failing]
    known = after(known, failing, Outcome.FAILED)
    (failed,) = [it for it in known if it.rule == failing]
    (alert,) = alerts_of(before, failed)
    assert (alert.labels["node"], alert.ends_at) == ("n1", None)
    known = merged(known, decided(rules=STAGES, known=known, now=SETTLED))
    again = replace(xid("n1"), starts_at=SETTLED)
    for alerts in ((), (again,)):
        later = SETTLED + timedelta(minutes=5)
        found = decided(*alerts, rules=STAGES, known=known, now=later)
        asked = [it for it in found if it.state in (State.REQUESTED, State.UNDO_REQUESTED)]
        assert {it.do for it in asked} <= {Do.CORDON}  # the new alert's own
    (closed,) = after((failed,), failing, Outcome.UNDONE)
    assert [it.ends_at is not None for it in alerts_of(failed, closed)] == [True]


def test_a_lost_node_counts_as_empty() -> None:
    taken = done(*decided(xid("n1")))
    lost = Alert("NodeLost", Severity.CRITICAL, "n1 is lost", {"node": "n1"}, NOW)
    found = decided(xid("n1"), lost, rules=STAGES, known=taken, pods=2)
    assert states(found)["reset"] == (State.REQUESTED, "Requested.")


def test_a_preflight_job_is_checked_with_its_place() -> None:
    text = b"""actions:
  - {name: a, alerts: [GpuXid], do: release}
  - name: b
    alerts: [GpuXid]
    do: release
    job:
      protocolVersion: 2
      name: any
      type: job
      prerequisites: [{type: dockerimage, name: image, uri: none}]
      taskRoles:
        test:
          instances: 2
          dockerImage: image
          resourcePerInstance: {cpu: 1, memoryMB: 64}
          commands: ["true"]
  - {name: c, alerts: [GpuXid], do: cordon, job: {}}
"""
    checked = check(text)
    assert {(it.path, it.line) for it in checked.problems} == {
        ("actions.0", 2),
        ("actions.1.job.taskRoles", 11),
        ("actions.2.job", 17),
    }
    named = check(text.replace(b"test:", b"a-b:").replace(b"instances: 2", b"instances: none"))
    assert ("actions.1.job.taskRoles.a-b.instances", 13) in {
        (it.path, it.line) for it in named.problems
    }


def test_rules_are_checked_with_their_place() -> None:
    text = b"""actions:
  - {name: a, alerts: [GpuXid], do: cordon}
  - {name: a, alerts: ["*"], do: reboot, mode: "on"}
limits: {nodesPerHour: many}
"""
    checked = check(text)
    assert checked.content is None
    places = {(it.path, it.line) for it in checked.problems}
    assert places == {("actions.1.do", 3), ("limits.nodesPerHour", 4)}
    both = check(b"rules: [{name: 7, event: job-failed}]\nactions:\n  - 5\n" + text[9:])
    assert {(it.path, it.line) for it in both.problems} == {
        ("rules.0.name", 1),
        ("actions.0", 3),
        ("actions.2.do", 5),
        ("limits.nodesPerHour", 6),
    }
    faults = text.replace(b"name: a, alerts: [GpuXid], do: cordon", b"nome: a")
    faults = faults.replace(b"reboot", b"drain")
    assert {it.path for it in check(faults).problems} == {
        "actions.0.name",
        "actions.0.alerts",
        "actions.0.do",
        "actions.0.nome",
        "actions.1.alerts",  # it matches every alert
        "limits.nodesPerHour",
    }
    twice = check(text.replace(b"reboot", b"drain").replace(b"many", b"1"))
    assert [it.path for it in twice.problems] == ["actions.1.name", "actions.1.alerts"]
    assert [it.line for it in both.problems] == [1, 3, 5, 6]
    assert [it.message for it in check(b"actions: 1").problems] == ["Input should be a list"]
    for empty in (b"", b"7"):
        assert [it.message for it in check(empty).problems] == ["Input should be a mapping"]
    (unknown,) = check(b"action: []").problems
    assert (unknown.path, unknown.message) == ("action", "there is no such field")
    assert check(b"actions: []").content == {"actions": []}
    assert check(b"- 1").content is None


RULES = """
actions:
- {name: quarantine, alerts: [GpuXid], do: cordon, mode: %s}
- {name: empty, alerts: [GpuXid], do: drain, mode: dry-run}
limits: {nodesPerHour: 5, nodesShare: 1}
"""
PATH = "/api/v2/alerts/rules"
KNOWN = "SELECT count(*) FROM subscription WHERE setting NOT LIKE '%/account/%'"


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_bad_gpu_is_quarantined_dry_then_really_and_undone(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    async with with_rest() as api:
        wanted = {"events": ["alert-raised", "alert-resolved"], "webhookUrl": receiver.url}
        assert (await api.admin.post("/api/v2/alerts/subscriptions", json=wanted)).status_code < 300
        await cluster.until(KNOWN, [(1,)])

        async def until_told(*wanted: str) -> None:
            """The receiver has got this of alerts, each once."""
            async with asyncio.timeout(60):
                while not set(wanted) <= set(told := told_by(receiver)):
                    await asyncio.sleep(0.05)
            assert len(told) == len(set(told))

        async def until(wanted: Callable[[Any], Any]) -> Any:
            async with asyncio.timeout(60):
                while not (found := wanted(await actions())):
                    await asyncio.sleep(0.05)
            return found

        async def actions() -> dict[str, Any]:
            answer = (await api.admin.get("/api/v2/alerts/actions")).json()
            keys = ("rule", "do", "target", "state")
            return {"/".join(it[key] for key in keys): it for it in answer["actions"]}

        async def order(node: str) -> str | None:
            found = await api.admin.get(f"/api/v2/cluster/nodes/{node}")
            return found.json().get("order") if found.status_code == 200 else "unknown"

        async def until_order(node: str, wanted: str | None) -> None:
            async with asyncio.timeout(60):
                while await order(node) != wanted:
                    await asyncio.sleep(0.05)

        wrong = await api.admin.put(PATH, content=RULES.replace("cordon", "explode") % '"on"')
        assert wrong.status_code == 400
        assert wrong.json()["errors"][0]["line"] == 3
        assert (await api.admin.put(PATH, content=RULES % "dry-run")).status_code == 202
        await cluster.publish("node-reported", "n1", report("n1", 1, "xid"))
        dry = {"quarantine/cordon/n1/dry-run", "empty/drain/n1/dry-run"}
        await until(lambda it: dry <= it.keys())
        assert await order("n1") is None
        would = ("raised ActionDryRun n1 quarantine", "raised ActionDryRun n1 empty")
        await until_told("raised GpuXid n1", *would)
        assert (await api.admin.put(PATH, content=RULES % '"on"')).status_code == 202
        await until(lambda it: it.get("quarantine/cordon/n1/done"))
        await until_order("n1", "cordon")
        await until_told("raised NodeCordoned n1", "resolved ActionDryRun n1 quarantine")
        await cluster.publish("node-reported", "n1", report("n1", 2, None))
        await until(lambda it: it.get("quarantine/cordon/n1/undone"))
        await until_order("n1", None)
        await until_told("resolved GpuXid n1", "resolved NodeCordoned n1")
        await cluster.publish("node-reported", "n2", report("n2", 1, "xid"))
        action = await until(lambda it: it.get("quarantine/cordon/n2/done"))
        undone = await api.admin.post(f"/api/v2/alerts/actions/{action['action']}/undo")
        assert (undone.status_code, undone.json()["message"]) == (200, "n2: order none.")
        await until(lambda it: it.get("quarantine/cordon/n2/undone"))
        assert await order("n2") is None
        await cluster.publish("node-reported", "n3", report("n3", 1, None))
        await until_order("n3", None)
        await api.admin.put("/api/v2/cluster/nodes/n3/order", json={"value": "drain"})
        await cluster.publish("node-reported", "n3", report("n3", 2, "xid"))
        refused = await until(lambda it: it.get("quarantine/cordon/n3/refused"))
        assert refused["reason"] == "admin has ordered drain of n3: it stands."
        back = await api.admin.post(f"{PATH}/rollback", json={"version": 1})
        assert (back.status_code, back.json()["version"]) == (202, 3)
        entries = (await api.admin.get("/api/v2/audit")).json()["entries"]
    done_by = {(it["username"], it["action"], it["object"]) for it in entries}
    assert {
        ("(alerting)", "dry-run.cordon", "n1"),
        ("(alerting)", "node.cordon", "n1"),
        ("(alerting)", "action.undo", "n1"),
        ("admin", "action.undo", "n2"),
        ("admin", "alert-rules.set", "alert-rules"),
        ("admin", "alert-rules.rollback", "alert-rules"),
    } <= done_by


def told_by(receiver: Any) -> list[str]:
    """Of each alert in a receiver's messages: begin or end, name, node, rule."""
    keys = ("node", "rule")
    return [
        " ".join(
            (
                message["type"].partition(".")[2],
                it["name"],
                *(it["labels"][key] for key in keys if key in it["labels"]),
            )
        )
        for request in receiver.requests
        for message in [json.loads(request.body)]
        for it in message["data"]["alerts"]
    ]


PREFLIGHT = repairing(
    """
- {name: quarantine, alerts: [GpuXid], do: cordon, mode: "on"}
- {name: reset, alerts: [GpuXid], do: remediate, mode: "on"}
""",
    alert="GpuXid",
    command="true",
)


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_failed_script_and_a_failed_preflight_job_keep_the_node_out(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=503, extra="retry-after: 3600\r\n")
    async with with_rest(order_settles_s=0.01) as api:

        async def until(question: Callable[[], Any]) -> Any:
            async with asyncio.timeout(60):
                while not (found := await question()):
                    await asyncio.sleep(0.05)
            return found

        async def action(rule: str, state: str) -> dict[str, Any] | None:
            answer = (await api.admin.get("/api/v2/alerts/actions")).json()
            found = {it["rule"]: it for it in answer["actions"]}
            return found[rule] if found.get(rule, {}).get("state") == state else None

        async def are(rule: str, *states: str) -> bool:
            answer = (await api.admin.get("/api/v2/alerts/actions")).json()
            found = sorted(it["state"] for it in answer["actions"] if it["rule"] == rule)
            return found == list(states)

        async def fires(name: str) -> str:
            answer = (await api.admin.get("/api/v2/alerts", params={"state": "firing"})).json()
            return next((it["summary"] for it in answer["alerts"] if it["name"] == name), "")

        async def order() -> str | None:
            found: str | None = (await api.admin.get("/api/v2/cluster/nodes/n1")).json()["order"]
            return found

        async def preflight() -> dict[str, Any] | None:
            jobs = (await api.admin.get("/api/v2/jobs")).json()
            return next((it for it in jobs if it["state"] == "WAITING"), None)

        async def end(job: dict[str, Any], state: JobState, verdict: Verdict | None) -> None:
            status = JobStatus(
                job=job["debugId"],
                name=job["name"],
                user="admin",
                virtual_cluster="default",
                state=state,
                revision=1,
                seen=1,
                submitted_at=NOW,
                verdict=verdict,
            )
            await cluster.publish("job-updated", job["debugId"], status)

        script = {"events": ["remediation-requested"], "webhookUrl": receiver.url}
        made = await api.admin.post("/api/v2/alerts/subscriptions", json=script)
        assert made.status_code == 201
        await cluster.until(KNOWN, [(1,)])
        assert (await api.admin.put(PATH, content=PREFLIGHT)).status_code == 202
        await cluster.publish("node-reported", "n1", report("n1", 1, "xid"))
        running = await until(lambda: action("reset", "running"))
        await cluster.until("SELECT attempts, lease IS NULL FROM delivery", [(1, True)])
        path = f"/api/v2/alerts/actions/{running['action']}"
        told = {"succeeded": False, "text": "resetting\nGPU 0 is in use\n"}
        code = json.loads(receiver.requests[0].body)["data"]["code"]
        by_code = {"Authorization": f"Bearer {code}"}
        answer = await api.admin.post(f"{path}/answer", json=told, headers=by_code)
        assert answer.status_code == 200, answer.text
        assert (await api.admin.post(f"{path}/answer", json=told)).status_code == 409
        failed = await until(lambda: action("reset", "failed"))
        assert failed["reason"] == "GPU 0 is in use"
        await cluster.until("SELECT state, why FROM delivery", [("given-up", "expired")])
        assert "GPU 0 is in use" in await until(lambda: fires("RemediationFailed"))
        await cluster.publish("node-reported", "n1", report("n1", 2, None))
        held = f"The action {running['action']} (remediate) has failed: a person decides."
        back = await until(lambda: action("back", "held"))
        while back is not None and back["reason"] != held:
            back = await until(lambda: action("back", "held"))
        assert (await order(), await preflight()) == ("cordon", None)

        assert (await api.admin.post(f"{path}/undo")).status_code == 200
        job = await until(preflight)
        assert (job["totalGpuNumber"], job["jobPriority"]) == (1, "oppo")
        wrong = Verdict(
            code=1,
            phrase="UserFailed",
            rule="r",
            fault=Fault.USER,
            behavior=Behavior.PERMANENT,
            cause="The bandwidth is too low.",
        )
        await end(job, JobState.FAILED, wrong)
        assert "The bandwidth is too low" in await until(lambda: fires("PreflightFailed"))
        assert (await order(), await fires("RemediationFailed")) == ("cordon", "")

        release = "/api/v2/cluster/nodes/n1/release"
        assert (await api.admin.post(release, json={"rule": "quarantine"})).status_code == 404
        assert (await api.admin.post(release, json={"rule": "back"})).status_code == 202
        again = await until(preflight)
        await cluster.publish("node-reported", "n1", report("n1", 3, "xid"))
        await until(lambda: are("quarantine", "done", "done"))
        await end(again, JobState.SUCCEEDED, None)
        await until(lambda: are("quarantine", "done", "undone"))
        assert await order() == "cordon"  # by the rule, since the person has asked

        assert (await api.admin.post(release, json={"rule": "back"})).status_code == 202
        await end(await until(preflight), JobState.SUCCEEDED, None)
        await until(lambda: are("quarantine", "undone", "undone"))
        assert (await order(), await fires("PreflightFailed")) == (None, "")


KEPT = """
actions:
- {name: quarantine, alerts: [GpuXid], do: cordon, mode: "on"}
- {name: reset, alerts: [GpuXid], labels: {node: n1}, do: remediate, mode: "on"}
limits: {nodesPerHour: 5, nodesShare: 1}
"""


@pytest.mark.postgres
@pytest.mark.kafka
async def test_nothing_is_asked_again_as_long_as_the_alert_fires(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async def until(api: Any, node: str, **wanted: str) -> dict[str, str]:
        """The actions on a node, by rule, once they are so."""
        async with asyncio.timeout(60):
            while True:
                answer = (await api.admin.get("/api/v2/alerts/actions")).json()
                here = [it for it in answer["actions"] if it["target"] == node]
                if {it["rule"]: it["state"] for it in here} == wanted:
                    return {it["rule"]: it["action"] for it in here}
                await asyncio.sleep(0.05)

    async with with_rest(order_settles_s=0.01) as api:
        assert (await api.admin.put(PATH, content=KEPT)).status_code == 202
        await cluster.publish("node-reported", "over", report("over", 1, "xid"))
        await until(api, "over", quarantine="done")
        await cluster.publish("node-reported", "over", report("over", 2, None))
        await until(api, "over", quarantine="undone")
        await cluster.publish("node-reported", "n1", report("n1", 1, "xid"))
        found = await until(api, "n1", quarantine="done", reset="running")
        path = f"/api/v2/alerts/actions/{found['reset']}/answer"
        assert (await api.admin.post(path, json={"succeeded": True})).status_code == 200
        await until(api, "n1", quarantine="done", reset="done")
        order = "/api/v2/cluster/nodes/n1/order"
        assert (await api.admin.put(order, json={"value": "none"})).is_success
        await until(api, "n1", quarantine="undone", reset="done")
    sql = "SELECT * FROM action WHERE target = 'n1' ORDER BY action"
    month = "interval '30 days'"
    await cluster.rows(f"UPDATE action SET at = at - {month}, asked_at = asked_at - {month}")
    before = await cluster.rows(sql)
    async with cluster.alerting(clean_rows_every_s=0.1):
        await cluster.until("SELECT action FROM action WHERE target = 'over'", [])
        await cluster.publish("node-reported", "n2", report("n2", 1, "xid"))
        await cluster.until("SELECT state FROM action WHERE target = 'n2'", [("requested",)])
        assert await cluster.rows(sql) == before
        await cluster.publish("node-reported", "n1", report("n1", 2, None))
        await cluster.until(sql, [])


@pytest.mark.postgres
@pytest.mark.kafka
async def test_nothing_ends_on_a_new_bus_before_the_rules_are_read(cluster: Any) -> None:
    text = "{name: empty, alerts: [GpuXid], do: drain}"
    content = check(f"actions: [{text}]".encode()).content
    assert content is not None
    config = AlertRulesConfig(version=1, content=content, by="admin", at=NOW)
    value = config.model_dump(mode="json", by_alias=True)
    rules = SettingChanged(setting=ALERT_RULES_SETTING, revision=1, value=value)
    told = "SELECT node, ends_at FROM alert WHERE name = 'ActionDryRun' ORDER BY node"
    bad = "SELECT node FROM alert WHERE name = 'GpuXid' ORDER BY node"
    async with cluster.alerting():
        await cluster.publish("settings-changed", rules.setting, rules)
        await cluster.publish("node-reported", "n1", report("n1", 1, "xid"))
        await cluster.until(told, [("n1", None)])
    cluster.broker.kill()  # with all records
    cluster.broker.start()
    async with cluster.alerting():
        await cluster.publish("node-reported", "n2", report("n2", 1, "xid"))
        await cluster.until(bad, [("n1",), ("n2",)])
        assert ("n1", None) in await cluster.rows(told)
        await cluster.publish("settings-changed", rules.setting, rules)
        await cluster.until(told, [("n1", None), ("n2", None)])


def report(node: str, revision: int, kind: str | None) -> NodeReport:
    gpu = Gpu(
        index=0,
        uuid="GPU-0",
        model="H100",
        memory_mb=1024,
        is_healthy=kind is None,
        problem=kind and "it fell off the bus",
        problem_kind=kind and ProblemKind(kind),
    )
    return NodeReport(
        node=node,
        revision=revision,
        journal="j",
        boot="b",
        at=datetime.now(UTC),  # noqa: TID251 - as an agent reports
        address="10.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        gpus=(gpu,),
        pods=(PodOnNode(pod=FOREIGN, cpu=1),),
    )


MAIL = Subscription(id="s1", owner="admin", events=("node-lost",), email="a@example.org")


def test_an_own_mute_holds_back_the_messages_of_its_owner_alone() -> None:
    (held,) = decided(xid("n1"), rules=(REMEDIATE,))
    running = answered(replace(held, state=State.REQUESTED), Outcome.RUNNING, "begun", now=NOW)
    (event,) = events_of(held, running, NOW)

    def is_held(owner: str | None, of: str) -> bool:
        until = NOW + timedelta(hours=1)
        mute = Mute(id="m", owner=owner, alert=event.name, until=until, by="admin")
        return is_muted(event, MAIL.model_copy(update={"owner": of}), [mute], {}, now=NOW)

    assert [is_held("admin", of) for of in ("admin", "ada", "(file)")] == [True, False, False]
    assert [is_held(None, of) for of in ("admin", "ada", "(file)")] == [True, True, True]


def test_a_mute_of_the_alert_holds_no_message_to_a_script_back() -> None:
    (held,) = decided(xid("n1"), rules=(REMEDIATE,))
    asked = replace(held, state=State.REQUESTED)
    running = answered(asked, Outcome.RUNNING, "begun", now=NOW)
    (event,) = events_of(asked, running, NOW)

    def is_held(alert: str) -> bool:
        mute = Mute(id="m", alert=alert, until=NOW + timedelta(hours=1), by="admin")
        return is_muted(event, MAIL, [mute], {}, now=NOW)

    assert not is_held(xid("n1").fingerprint)
    assert is_held("remediation-requested")
