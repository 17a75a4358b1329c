"""What operators see of queue, virtual clusters and nodes, within 80 columns; and their orders."""

import json
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli.home import write_json
from rest_double import JOB, Rest, job_status, muster, on_a_terminal

COLUMNS = 80

QUEUE = {
    "asOf": 7,
    "total": 3,
    "limit": 50,
    "gangs": [
        {
            "position": 1,
            "gang": "01ke6r5v40d8n2p4q6s8t0v2w4-0",
            "user": "ada",
            "name": "a-long-name-of-a-run-with-many-parameters-lr-0001",
            "virtualCluster": "vision-and-robotics",
            "priority": 100,
            "submittedAt": "2026-01-05T09:30:00Z",
            "reason": {
                "code": "preempting",
                "text": "It waits for 2 gangs to leave.",
                "numbers": {"gangs": 2, "gpus": 16, "until": None},
            },
        },
        {
            "position": 2,
            "gang": "b-0",
            "user": "bob",
            "name": "b",
            "virtualCluster": "nlp",
            "priority": -1,
            "submittedAt": "2026-01-05T09:30:00Z",
            "reason": None,
            "gpus": 8,
            "expectedStart": None,
        },
    ],
}


def ordered(order: str, by: str, reason: str | None = None) -> dict[str, Any]:
    at = "2026-01-31T13:00:05+00:00"
    return {"order": order, "orderedBy": by, "orderedAt": at, "orderReason": reason}


CLUSTER = {
    "asOf": 7,
    "gpuTotal": 128,
    "virtualClusters": {
        "vision": {
            "gpus": {
                "quota": 80,
                "guaranteed": 60,
                "opportunistic": 8,
                "free": 16,
                "lent": 4,
                "borrowed": 2,
            },
            "gpuTypes": ["a100", "v100"],
            "pins": ["lab"],
            "cells": [
                {"quota": "v100-rack", "count": 1, "bound": 1},
                {"quota": "v100-rack/v100-node", "count": 2, "bound": 0},
            ],
        }
    },
    "nodes": {
        "total": 16,
        "ready": 15,
        "gpusReady": 118,
        "troubled": 2,
        "inTrouble": [
            {
                "name": "n3",
                "state": "lost",
                **ordered("drain", "ada"),
                "problem": None,
                "badGpus": [],
                "gpus": 8,
                "pods": 1,
            },
            {
                "name": "n4",
                "state": "ready",
                "order": None,
                "problem": "GPU 2 has fallen off the bus, and its neighbours feel unwell",
                "badGpus": [2, 3],
                "gpus": 8,
                "pods": 0,
            },
        ],
    },
}


def test_the_queue_shows_waiting_jobs_with_their_reasons(rest: Rest, tmp_path: Path) -> None:
    rest.answer("GET /api/v2/queue?limit=50", QUEUE)
    heading, first, second, more, as_of = on_a_terminal(rest, tmp_path, "queue")
    assert max(len(line) for line in (heading, first, second)) <= COLUMNS
    assert heading.split() == [
        *("#", "JOB", "VC", "PRIO", "GPUS", "AGE", "START", "WHY", "NUMBERS")
    ]
    assert first.split()[0] == "1"
    assert "preempting" in first
    assert "gangs" in first
    assert second.split()[:5] == ["2", "bob~b", "nlp", "-1", "8"]
    assert (more, as_of) == ("1 more waits; --limit shows more of them.", "as of cycle 7")
    whole = muster(rest, tmp_path, "queue").out
    assert "ada~a-long-name-of-a-run-with-many-parameters-lr-0001" in whole
    assert "gangs 2, gpus 16" in whole
    assert json.loads(muster(rest, tmp_path, "queue", "-o", "json").out) == QUEUE
    rest.answer("GET /api/v2/queue?limit=5000", QUEUE)
    *_, more, _ = muster(rest, tmp_path, "queue", "--limit", "5000").out.splitlines()
    assert more == "1 more waits; the Scheduler shows no more than 50 at once."


def test_the_queue_tells_tasks_that_start_singly_apart(rest: Rest, tmp_path: Path) -> None:
    tasks = [QUEUE["gangs"][1] | {"gang": f"01ke6r-0-w-{n}-0"} for n in (3, 4)]
    rest.answer("GET /api/v2/queue?limit=50", QUEUE | {"gangs": tasks})
    rows = muster(rest, tmp_path, "queue").out.splitlines()[1:3]
    assert [row.split()[1:4] for row in rows] == [["bob~b", "w", "3"], ["bob~b", "w", "4"]]


def test_the_cluster_shows_what_each_virtual_cluster_owns_and_uses(
    rest: Rest, tmp_path: Path
) -> None:
    rest.answer("GET /api/v2/cluster", CLUSTER)
    lines = on_a_terminal(rest, tmp_path, "cluster")
    assert max(len(line) for line in lines) <= COLUMNS
    words = [line.split() for line in lines]
    assert "GPUs   128, 118 healthy on ready nodes" in lines
    assert "nodes  16, 15 ready, 2 listed below" in lines
    assert ["vision", "80", "60", "8", "16", "4", "2", "a100", "v100", "lab"] in words
    assert ["vision", "v100-rack", "1", "1"] in words
    assert ["vision", "v100-rack/v100-node", "2", "0"] in words
    assert ["n3", "lost,", "draining", "1", "drained", "since"] in [it[:6] for it in words]
    assert any(line.startswith("n4") and "2 of 8" in line for line in lines)
    assert lines[-1] == "as of cycle 7"
    assert json.loads(muster(rest, tmp_path, "cluster", "-o", "json").out) == CLUSTER
    gpus = CLUSTER["virtualClusters"]["vision"]["gpus"]
    for usable in (16, 5):
        vision = CLUSTER["virtualClusters"]["vision"] | {"gpus": gpus | {"usable": usable}}
        rest.answer("GET /api/v2/cluster", CLUSTER | {"virtualClusters": {"vision": vision}})
        out = muster(rest, tmp_path, "cluster").out
        assert ("USABLE" in out) == (usable < 16)
    assert ["vision", "80", "60", "8", "16", "5", "4"] in [
        it.split()[:7] for it in out.splitlines()
    ]


def cell(address: str, kind: str, used: int, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "cell": address,
        "chain": "rack",
        "type": kind,
        "health": "healthy",
        "trouble": None,
        "order": None,
        "gpus": gpus,
        "gpusHealthy": gpus,
        "gpusUsed": used,
        "gpusFree": gpus - used,
        "gpusBound": 0,
        "gpusReserved": 0,
        "reservedFor": None,
        "binding": None,
        "priority": None,
    } | more


def test_cells_are_shown_as_a_tree(rest: Rest, tmp_path: Path) -> None:
    trouble = "GPU 2 has fallen off the bus"
    shown = [
        cell("rack0", "v100-rack", 8, 16, gpusBound=8, priority=5),
        cell(
            "rack0/n3",
            "v100-node",
            8,
            8,
            priority=5,
            binding={"virtualCluster": "vision", "pin": None},
        ),
        cell(
            "rack0/n4",
            "v100-node",
            0,
            8,
            health="bad",
            gpusHealthy=6,
            trouble=trouble,
            order="drain",
        ),
        cell(
            "rack1/n9/s0",
            "v100-switch",
            1,
            2,
            priority=-1,
            order="cordon",
            gpusReserved=1,
            reservedFor={"user": "ann", "name": "bert", "startsAt": "2026-01-01T00:00:00Z"},
            binding={"virtualCluster": "nlp", "pin": "lab"},
        ),
    ]
    content = {"asOf": 7, "total": 9, "limit": 100, "next": None, "cells": shown}
    rest.answer("GET /api/v2/cluster/cells?limit=100", content)
    lines = on_a_terminal(rest, tmp_path, "cells")
    assert [re.split("  +", line) for line in lines] == [
        ["CELL", "TYPE", "USED", "FREE", "VC", "PRIO", "STATE"],
        ["rack0", "v100-rack", "8/16", "8", "in parts", "5", "healthy"],
        ["", "n3", "v100-node", "8/8", "0", "vision", "5", "healthy"],
        ["", "n4", "v100-node", "0/8", "8", f"drained, 2 bad: {trouble}"],
        [
            "rack1/n9/s0",
            "v100-switch",
            "1/2",
            "1",
            "nlp, pin lab",
            "-1",
            "cordoned, 1 reserved for ann~bert (now)",
        ],
        ["5 more cells; --limit shows more of them."],
        ["as of cycle 7"],
    ]
    query = "address=rack0%2Fn3&virtualCluster=nlp&limit=2"
    rest.answer(f"GET /api/v2/cluster/cells?{query}", content)
    words = ("cells", "rack0/n3", "--virtual-cluster", "nlp", "--limit", "2", "-o", "json")
    assert json.loads(muster(rest, tmp_path, *words).out) == content


@pytest.mark.parametrize(
    ("command", "value"), [("cordon", "cordon"), ("drain", "drain"), ("uncordon", "none")]
)
def test_an_order_about_a_node_is_sent(
    rest: Rest, tmp_path: Path, command: str, value: str
) -> None:
    rest.answer("PUT /api/v2/cluster/nodes/n%2F4/order", {"message": "Done."}, 202)
    ran = muster(rest, tmp_path, "nodes", command, "n/4")
    assert (ran.code, ran.out, ran.err) == (0, "Done.\n", "")
    assert json.loads(rest.asked[0][2]) == {"value": value}


def test_a_refused_order_is_an_error(rest: Rest, tmp_path: Path) -> None:
    refusal = {"code": "ForbiddenUserError", "message": "Only an admin may do this."}
    rest.answer("PUT /api/v2/cluster/nodes/n4/order", refusal, 403)
    ran = muster(rest, tmp_path, "nodes", "drain", "n4")
    assert (ran.code, ran.err) == (5, "muster: Only an admin may do this.\n")
    assert muster(rest, tmp_path, "nodes", "drain").code == 2


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "ready",
        "order": None,
        "address": "a",
        "gpuUsed": 0,
        "gpuTotal": 1,
        "gpus": [{"simulated": False}],
        "cpu": 1,
        "cpuUsed": 0,
        "memoryMB": 1,
        "memoryMBUsed": 0,
        "pods": [],
        "problem": None,
        "missingLimits": [],
        "singleUser": None,
    } | more


def test_nodes_are_shown_with_the_orders_that_stand(rest: Rest, tmp_path: Path) -> None:
    bad = {"index": 3, "simulated": False, "problem": "GPU is lost."}
    nodes = [
        node("n1"),
        node("n2", **ordered("cordon", "ada")),
        node("n3", **ordered("drain", "(alerting)", "rule empty: GPU 3 is bad")),
        node("n4", order="drain", pods=[{"pod": "p"}]),
        node("n5", order="cordon", state="unhealthy", gpus=[bad, {"simulated": False}]),
        node("n6", state="unusable", problem="The Scheduler places nothing there: why."),
    ]
    rest.answer("GET /api/v2/cluster/nodes", {"nodes": nodes[:2], "total": len(nodes)})
    rest.answer("GET /api/v2/cluster/nodes?offset=2", {"nodes": nodes[2:], "total": len(nodes)})
    lines = muster(rest, tmp_path, "nodes").out.splitlines()[1:]
    assert [re.split("  +", line)[1] for line in lines] == [
        "ready",
        "cordoned",
        "drained",
        "draining",
        "unhealthy, cordoned",
        "unusable",
    ]
    assert lines[5].endswith("  The Scheduler places nothing there: why")
    assert lines[4].endswith("  GPU 3: GPU is lost")
    assert lines[1].endswith("cordoned since 2026-01-31 13:00:05 UTC by ada")
    assert lines[2].endswith("drained since 2026-01-31 13:00:05 UTC by rule empty: GPU 3 is bad")


def test_nodes_and_status_say_where_users_are_not_separated(rest: Rest, tmp_path: Path) -> None:
    why = "the agent is not root, so all tasks run as its user"
    nodes = [node("n1"), node("n2", singleUser=why), node("n3", singleUser=why)]
    running = dict.fromkeys(("rest", "kafka", "database", "simulatedGpus"))
    running |= {"pid": os.getpid(), "phase": "up", "services": {}}
    for reports, is_here, expected in (
        (nodes[:1], True, "separated: each task runs in a container, or under a uid of its user"),
        (nodes, True, f"not separated on 2 of 3 nodes: {why}"),
        (nodes[1:2], True, f"not separated: {why}"),
        (nodes[1:2], False, f"not separated: {why}"),
    ):
        write_json(tmp_path / "running.json", running if is_here else {})
        rest.answer("GET /api/v2/info", {})
        rest.answer("GET /api/v2/cluster/nodes", {"nodes": reports, "total": len(reports)})
        status = muster(rest, tmp_path, "status", "--output", "json")
        assert json.loads(status.out)["users"] == expected
    lines = muster(rest, tmp_path, "nodes").out.splitlines()
    assert lines[1].endswith(f"users not separated: {why}")


def test_why_tells_code_numbers_place_class_and_preemption(rest: Rest, tmp_path: Path) -> None:
    waits = {
        "gang": "g-0",
        "state": "waiting",
        "reason": {"code": "quota", "text": "No.", "numbers": {"wanted": 8, "free": 3}},
        "position": 4,
        "waiting": 9,
        "ahead": ["a-0", "b-0", "c-0", "d-0"],
    }
    content = {"name": JOB, "state": "WAITING", "reason": waits["reason"]}
    path = f"GET /api/v2/jobs/{JOB}/why"
    rest.answer(path, content | {"scheduler": {"asOf": 7, "job": "j", "gangs": [waits]}})
    assert muster(rest, tmp_path, "why", JOB).out == (
        f"{JOB} is WAITING: No.\n"
        "  code: quota\n"
        "  numbers: wanted 8, free 3\n"
        "  place: 4 of 9\n"
        "as of cycle 7\n"
    )
    runs = {
        "gang": "g-0",
        "state": "placed",
        "class": "downgraded",
        "reason": None,
        "preemption": {"gang": None, "until": "12:00", "reason": {"text": "n4 is drained."}},
    }
    content = {"name": JOB, "state": "RUNNING", "reason": {"text": "It goes."}}
    rest.answer(path, content | {"scheduler": {"gangs": [runs] * 6}})
    answer = muster(rest, tmp_path, "why", JOB).out
    assert answer.count("  gang: g-0\n") == 5
    assert "  class: downgraded\n" in answer
    borrowed = runs | {"class": "guaranteed", "lender": "speech"}
    rest.answer(path, content | {"scheduler": {"gangs": [borrowed]}})
    assert "  class: guaranteed, borrowed from speech\n" in muster(rest, tmp_path, "why", JOB).out
    pods = [{"pod": f"p{n}", "state": "placed" if n < 6 else "waiting"} for n in range(8)]
    elastic = runs | {"class": "guaranteed", "pods": pods, "borrowed": {"nlp": 2, "speech": 1}}
    rest.answer(path, content | {"scheduler": {"gangs": [elastic]}})
    text = muster(rest, tmp_path, "why", JOB).out
    assert "  size: runs with 6 of 8 pods; 2 wait for room to grow into\n" in text
    assert "  borrowed: 2 GPUs from nlp, 1 GPU from speech, by what it has grown by\n" in text
    rest.answer(path, content | {"scheduler": {"gangs": [runs] * 6}})
    assert "  preempted: for a drain, until 12:00: n4 is drained.\n" in answer
    assert "  more: 1 gang not shown; -o json has all\n" in answer
    for gang, cause in (("d-0", "for gang d-0"), (None, "by a change of the configuration")):
        lazy = runs | {"downgrade": {"gang": gang, "since": "2026-01-31T13:00:00Z"}}
        rest.answer(path, content | {"scheduler": {"gangs": [lazy]}})
        answer = muster(rest, tmp_path, "why", JOB).out
        assert f"  runs: downgraded since 2026-01-31T13:00:00Z {cause}\n" in answer
        assert "class:" not in answer


def test_why_tells_first_which_tasks_wait_and_for_what(rest: Rest, tmp_path: Path) -> None:
    """Of a job that runs in part, as its tasks start singly."""
    gangs = [
        {"gang": f"01ke6r-0-w-{n}-0", "state": "placed", "class": "guaranteed", "reason": None}
        for n in range(6)
    ]
    for number, text in ((6, "Nothing is free."), (7, "n4 is bad.")):
        reason = {"code": "shape", "text": text, "numbers": {"free": 0}}
        task = {"gang": f"01ke6r-0-w-{number}-0", "state": "waiting", "reason": reason}
        gangs.append(task)
    content = {"name": JOB, "state": "RUNNING", "reason": None}
    path = f"GET /api/v2/jobs/{JOB}/why"
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING"))
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": gangs}})
    assert muster(rest, tmp_path, "why", JOB).out.splitlines()[:10] == [
        f"{JOB} is RUNNING.",
        "  task: w 6",
        "  why: Nothing is free.",
        "  code: shape",
        "  numbers: free 0",
        "  task: w 7",
        "  why: n4 is bad.",
        "  code: shape",
        "  numbers: free 0",
        "  task: w 0",
    ]
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": gangs[-1:]}})
    assert muster(rest, tmp_path, "why", JOB).out.splitlines()[1:3] == [
        "  task: w 7",
        "  why: n4 is bad.",
    ]


def test_why_tells_what_would_have_to_be_otherwise(rest: Rest, tmp_path: Path) -> None:
    soon = datetime.fromtimestamp(time.time() + 2 * 3600 + 10 * 60 + 30, UTC).isoformat()
    ended = {"gang": "t", "name": "train-bert", "user": "eve", "gpus": 16, "endsAt": soon}
    ahead = [{"gang": f"a{n}", "name": f"a{n}", "user": "eve", "gpus": 10} for n in range(4)]
    waits = {
        "gang": "g-0",
        "state": "waiting",
        "reason": {"code": "quota", "text": "No.", "numbers": {}},
        "inVirtualCluster": {"position": 5, "waiting": 9, "gpusAhead": 40, "ahead": ahead},
        "expectedStart": soon,
        "counterfactual": {
            "ends": {"gangs": [ended], "count": 1, "gpus": 16, "at": soon, "isLeast": True},
            "fewer": {"role": "worker", "pods": 6, "insteadOf": 8},
            "opportunistic": True,
            "borrowing": {"startsNow": True, "lender": "speech"},
            "nodes": ["n1"],
            "leftOut": ["ends"],
        },
    }
    content = {"name": JOB, "state": "WAITING", "reason": waits["reason"]}
    path = f"GET /api/v2/jobs/{JOB}/why"
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [waits]}})
    assert muster(rest, tmp_path, "why", JOB).out.splitlines()[2:-1] == [
        "  ahead: 4 gangs with 40 GPUs are ahead of it: a0 (10 GPUs), a1 (10 GPUs), a2 (10 GPUs)"
        " and 1 more",
        "  expected: to start in 2h10m, on reserved cells",
        "  starts: when train-bert (16 GPUs) ends or releases its GPUs, expected in 2h10m, if"
        " no other job takes them",
        "  or now: would start now with 6 pods of worker instead of 8",
        "  or now: would start now as opportunistic (nothing is guaranteed then)",
        "  or now: would start now on what speech lends (borrow: true; it is preempted on demand)",
        "  or: could start if n1 was usable, if no other job takes them",
        "  left out: ends: not found within the bounds of an answer; no lender's jobs are tried",
    ]
    fewer = {"role": "", "pods": 1, "insteadOf": 2, "isElastic": True}
    elastic = waits | {"counterfactual": {"fewer": fewer}}
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [elastic]}})
    assert "  or now: would start now with minInstances: 1 instead of 2\n" in (
        muster(rest, tmp_path, "why", JOB).out
    )
    etl = [ended | {"name": name, "gpus": 0} for name in ("etl", "load")]
    ends = {"gangs": etl, "count": 2, "gpus": 0, "at": soon, "isLeast": True}
    alone = {"counterfactual": {"ends": ends}, "inVirtualCluster": {"position": 1, "waiting": 1}}
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [waits | alone]}})
    assert "  starts: when etl (no GPUs), load (no GPUs) end, expected in 2h10m\n" in (
        muster(rest, tmp_path, "why", JOB).out
    )
    ends = {"gangs": [], "count": 0, "gpus": 0, "at": soon, "isLeast": True}
    waits |= {"counterfactual": {"ends": ends}}
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [waits]}})
    *_, starts, _ = muster(rest, tmp_path, "why", JOB).out.splitlines()
    assert starts == (
        "  starts: when those that are ahead of it, or have reserved cells, have started"
    )
    waits |= {"counterfactual": {"ends": None, "leftOut": []}, "virtualCluster": "vision"}
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [waits]}})
    *_, starts, _ = muster(rest, tmp_path, "why", JOB).out.splitlines()
    assert starts == (
        "  starts: not by waiting: as the nodes are, it would not fit if all gangs of vision had"
        " ended. Ask for fewer or smaller tasks, or see `muster nodes`."
    )
    waits |= {"counterfactual": {"ends": None, "leftOut": ["ends"]}}
    rest.answer(path, content | {"scheduler": {"asOf": 7, "gangs": [waits]}})
    assert "not by waiting" not in muster(rest, tmp_path, "why", JOB).out
