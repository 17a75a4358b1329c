"""Examples of the OpenAPI document, by the name of their schema. Tests compare both."""

from typing import Any

JOB_FILE = """\
protocolVersion: 2
name: train-bert
type: job
prerequisites:
  - {name: image, type: dockerimage, uri: 'example/pytorch:2.9'}
taskRoles:
  worker:
    instances: 2
    dockerImage: image
    resourcePerInstance: {cpu: 8, memoryMB: 65536, gpu: 8}
    commands: [python train.py]
defaults: {virtualCluster: vision}
extras: {hivedScheduler: {jobPriorityClass: prod}}
"""

CONFIG_FILE = """\
virtualClusters:
  vision: {cells: [{type: node, count: 6}]}
  nlp: {cells: [{type: node, count: 2}]}
policy: {backfill: true}
"""

ALERT_RULES_FILE = """\
rules:
  - {name: SpeechFails, event: job-failed, when: event.job.virtualCluster == 'speech', count: 3}
actions:
  - {name: bad-gpus, alerts: [GpuXid, GpuMissing], do: cordon, mode: "on"}
limits: {nodesPerHour: 2, nodesShare: 0.1, jobsPerHour: 5}
"""

LOGIN = {"username": "ann", "password": "correct-horse-battery", "expiration": 86400}

_CONFIG = {
    "virtualClusters": {
        "vision": {"cells": [{"type": "node", "count": 6}]},
        "nlp": {"cells": [{"type": "node", "count": 2}]},
    },
    "policy": {"backfill": True},
}
_WARNING = {
    "path": "taskRoles.worker.extraContainerOptions",
    "message": "has no effect",
    "line": 9,
    "column": 5,
}
_ROOM = {
    "code": "no-room",
    "text": "16 GPUs are wanted, 8 are free.",
    "numbers": {"wanted": 16, "free": 8},
}
_RETRIES: dict[str, Any] = {
    "retries": 0,
    "retryDetails": {"user": 0, "platform": 0, "resource": 0},
    "retryDelayTime": None,
    "retryAt": None,
}
_TIMES: dict[str, Any] = {
    "submissionTime": 1769864400000,
    "submittedAt": "2026-01-31T13:00:00.000Z",
    "createdTime": 1769864401000,
    "createdAt": "2026-01-31T13:00:01.000Z",
    "launchedTime": 1769864460000,
    "launchedAt": "2026-01-31T13:01:00.000Z",
    "completedTime": None,
    "completedAt": None,
}
_TASK: dict[str, Any] = {
    "taskIndex": 0,
    "taskUid": "0193f0c2a7d4-worker-0-0",
    "taskState": "RUNNING",
    "reason": None,
    "containerId": "0193f0c2a7d4-worker-0-0",
    "containerIp": "10.0.0.7",
    "containerNodeName": "node-7",
    "containerPorts": {"ssh": "30022"},
    "containerGpus": 255,
    "gpus": [0, 1, 2, 3, 4, 5, 6, 7],
    "containerLog": None,
    "containerExitCode": None,
    "containerExitSpec": None,
    "containerExitDiagnostics": None,
    "retries": 0,
    "accountableRetries": 0,
    "createdTime": 1769864401000,
    "createdAt": "2026-01-31T13:00:01.000Z",
    "launchedTime": 1769864460000,
    "launchedAt": "2026-01-31T13:01:00.000Z",
    "completedTime": None,
    "completedAt": None,
    "attemptId": 0,
    "attemptState": "AttemptRunning",
    "currentAttemptLaunchedTime": 1769864460000,
    "currentAttemptLaunchedAt": "2026-01-31T13:01:00.000Z",
    "currentAttemptCompletedTime": None,
    "currentAttemptCompletedAt": None,
}
_JOB: dict[str, Any] = {
    "debugId": "0193f0c2a7d4",
    "name": "train-bert",
    "tags": [],
    "jobPriority": "prod",
}
_LISTED = {
    **_JOB,
    "username": "ann",
    "state": "RUNNING",
    "subState": "AttemptRunning",
    "executionType": "START",
    **_RETRIES,
    **_TIMES,
    "appExitCode": None,
    "virtualCluster": "vision",
    "totalGpuNumber": 16,
    "totalTaskNumber": 2,
    "totalTaskRoleNumber": 1,
}
_STATUS: dict[str, Any] = {
    "username": "ann",
    "state": "RUNNING",
    "subState": "AttemptRunning",
    "executionType": "START",
    **_RETRIES,
    **_TIMES,
    "virtualCluster": "vision",
    "reason": None,
    "gangClass": "guaranteed",
    "lender": None,
    "appId": "0193f0c2a7d4",
    "appProgress": 0,
    "attemptId": 0,
    "attemptState": "AttemptRunning",
    "appCreatedTime": 1769864401000,
    "appCreatedAt": "2026-01-31T13:00:01.000Z",
    "appLaunchedTime": 1769864460000,
    "appLaunchedAt": "2026-01-31T13:01:00.000Z",
    "appCompletedTime": None,
    "appCompletedAt": None,
    "appExitCode": None,
    "appExitSpec": None,
    "appExitDiagnostics": None,
    "appExitMessages": {"container": None, "runtime": None, "launcher": None},
    "appExitTriggerMessage": None,
    "appExitTriggerTaskRoleName": None,
    "appExitTriggerTaskIndex": None,
    "appExitType": None,
}
_GANG = {
    "gang": "0193f0c2a7d4.0",
    "name": "train-bert",
    "user": "ann",
    "job": "0193f0c2a7d4",
    "virtualCluster": "vision",
    "priority": 100,
    "submittedAt": "2026-01-31T13:00:00Z",
}
_PAGE = {"asOf": 4711, "total": 1, "offset": 0, "limit": 1000}
_VERSION: dict[str, Any] = {
    "version": 3,
    "action": "set",
    "by": "admin",
    "at": "2026-01-31T13:00:00.000Z",
    "comment": "two nodes for nlp",
    "rolledBackTo": None,
}
_MUTE = {
    "id": "0k3v9x",
    "owner": None,
    "alert": "GpuHot",
    "job": None,
    "until": "2026-02-01T08:00:00.000Z",
    "by": "admin",
    "comment": "known",
}
_TRIAL = {"rule": "CheckpointsFail", "fired": 4, "events": 13, "failed": 0}
_RULES = _VERSION | {
    "content": {"actions": [{"name": "bad-gpus", "alerts": ["GpuXid"], "do": "cordon"}]}
}
_WHOLE = _VERSION | {"content": _CONFIG}
_NOTHING = {
    "state": "none",
    "reason": "Nothing was recorded.",
    "needsAcceptance": False,
    "report": None,
}
_SUBSCRIPTION: dict[str, Any] = {
    "events": ["job-failed", "job-stuck"],
    "filter": {"users": ["ann"], "virtualClusters": [], "jobNames": ["train-*"]},
    "leastSeverity": "info",
    "quietHours": {"start": "22:00", "end": "07:00", "timeZone": "Europe/Berlin"},
    "digest": {"every": "day", "at": "08:00", "timeZone": "Europe/Berlin"},
    "enabled": True,
    "webhookUrl": "https://example.org/hook",
    "email": None,
}
_HEALTH = {
    "failures": 1,
    "pausedUntil": None,
    "givenUp": 0,
    "disabledAfter": 20,
    "disabled": None,
}
_SHOWN_SUBSCRIPTION = {
    "id": "0193f0c2b0aa",
    "owner": "ann",
    **_SUBSCRIPTION,
    "receiver": None,
    "secretVersions": [1],
}
_SECRETS = ["whsec_VGhpcyBpcyBhbiBleGFtcGxlLCBubyBzZWNyZXQu"]

_USER: dict[str, Any] = {
    "username": "ann",
    "number": 7,
    "grouplist": [],
    "email": "ann@example.org",
    "emailConfirmed": True,
    "extension": {},
    "admin": False,
    "virtualCluster": ["default", "vision"],
    "ownsVirtualCluster": ["vision"],
    "maxPriority": {"vision": 100},
    "storageConfig": [],
}

_STORAGE = {
    "claim": "home",
    "hostPath": "/srv/nfs/home",
    "subPath": "users/{user}",
    "readOnly": False,
    "default": True,
    "users": ["*"],
    "virtualClusters": [],
}

_FIGURES = {
    "cpus": 6.213,
    "memoryBytes": 41200000000.0,
    "gpuPercent": 93.5,
    "gpuIdlePercent": 1.7,
    "gpuMemoryBytes": 611000000000.0,
    "receivedBytesPerS": 182000000.0,
    "sentBytesPerS": 181000000.0,
    "readBytesPerS": 52000000.0,
    "writtenBytesPerS": 1200000.0,
}

_HOURS = {"held": 1344.0, "used": 1002.5, "idle": 80.1, "unknown": 12.0, "refunded": 16.0}

EXAMPLES: dict[str, Any] = {
    "UsageReport": {
        "since": "2026-01-26T00:00:00.000Z",
        "until": "2026-02-02T00:00:00.000Z",
        "total": {"name": "all", **_HOURS},
        "virtualClusters": [{"name": "vision", **_HOURS}],
        "users": [{"name": "ann", **_HOURS}],
        "jobs": [{"name": "ann~train-bert", **_HOURS}],
        "missing": ["node-8"],
    },
    "JobUsage": {
        "name": "ann~train-bert",
        "attempt": 0,
        "since": "2026-01-31T13:00:00.000Z",
        "until": "2026-01-31T14:00:00.000Z",
        "stepS": 60.0,
        "tasks": [
            {
                "role": "worker",
                "index": 0,
                "attempt": 0,
                "node": "node-7",
                "gpus": 8,
                "average": _FIGURES,
                "series": {
                    "at": ["2026-01-31T13:01:00.000Z"],
                    **{name: [value] for name, value in _FIGURES.items()},
                },
            }
        ],
        "missing": [{"node": "node-8", "reason": "Node node-8 does not answer; try again later."}],
    },
    "ErrorBody": {
        "code": "InvalidProtocolError",
        "message": "The job file has 1 problem.",
        "errors": [
            {
                "path": "taskRoles.worker.instances",
                "message": "must be a whole number from 1 on",
                "line": 8,
                "column": 16,
            }
        ],
    },
    "Submitted": {
        "message": "The job ann~train-bert is accepted.",
        "name": "ann~train-bert",
        "warnings": [_WARNING],
    },
    "JobListItem": _LISTED,
    "JobList": {"totalCount": 1, "data": [_LISTED]},
    "JobDetail": {
        **_JOB,
        "warnings": [],
        "jobStatus": _STATUS,
        "taskRoles": {
            "worker": {
                "taskRoleStatus": {"name": "worker", "minInstances": None},
                "taskStatuses": [_TASK],
            }
        },
    },
    "ExecutionType": {"value": "STOP"},
    "Tag": {"value": "baseline"},
    "Why": {
        "name": "ann~train-bert",
        "state": "WAITING",
        "reason": _ROOM,
        "scheduler": {
            "asOf": 4711,
            "job": _GANG["job"],
            "gangs": [
                {
                    **_GANG,
                    "reason": _ROOM,
                    "state": "waiting",
                    "pods": [{"pod": "p-0", "state": "waiting", "gpus": [], "ports": {}}],
                    "class": None,
                    "lender": None,
                    "borrowed": {},
                    "cells": [],
                    "downgrade": None,
                    "preemption": None,
                    "position": 1,
                    "waiting": 3,
                    "ahead": [],
                    "inVirtualCluster": {
                        "position": 1,
                        "waiting": 2,
                        "gpusAhead": 0,
                        "ahead": [],
                    },
                    "expectedStart": "2026-01-31T15:10:00Z",
                    "counterfactual": {
                        "ends": None,
                        "fewer": {
                            "role": "worker",
                            "pods": 1,
                            "insteadOf": 2,
                            "isElastic": False,
                        },
                        "opportunistic": False,
                        "borrowing": None,
                        "nodes": [],
                        "leftOut": [],
                    },
                }
            ],
        },
        "schedulerProblem": None,
    },
    "LoggedIn": {
        "user": "ann",
        "token": "an-example-of-a-token",
        "admin": False,
        "expiresAt": "2026-02-07T13:00:00.000Z",
        "hasGitHubPAT": False,
    },
    "Renewed": {"expiresAt": "2026-02-07T13:00:00.000Z"},
    "NewApplicationToken": {"name": "nightly training", "expiration": 2592000},
    "ApplicationToken": {
        "token": "an-example-of-a-token",
        "id": "0123456789abcdef",
        "name": "nightly training",
        "application": True,
        "expiresAt": "2026-03-02T13:00:00.000Z",
    },
    "TokenList": {
        "tokens": [
            {
                "id": "0123456789abcdef",
                "name": "nightly training",
                "application": True,
                "createdAt": "2026-01-31T13:00:00.000Z",
                "expiresAt": None,
                "usedAt": "2026-01-31T13:05:00.000Z",
            }
        ]
    },
    "NewUser": {
        "username": "ann",
        "password": "correct-horse-battery",
        "email": "ann@example.org",
        "admin": False,
        "virtualCluster": ["default", "vision"],
        "ownsVirtualCluster": ["vision"],
        "maxPriority": {"vision": 100, "*": 0},
        "extension": {},
    },
    "OwnChange": {"oldPassword": "correct-horse-battery", "newPassword": "blue-kettle-42"},
    "EmailCode": {"code": "K7QMZT4B2XWBK7QMZT4B2XWBK7QMZT4B"},
    "UserChange": {"data": {"username": "ann", "virtualCluster": ["vision"]}, "patch": True},
    "ShownUser": _USER,
    "UserPage": {"users": [_USER], "total": 1},
    "NewStorage": _STORAGE,
    "ShownStorage": {"name": "home", **_STORAGE},
    "StoragePage": {"storages": [{"name": "home", **_STORAGE}], "total": 1},
    "NodeOrdered": {"value": "drain"},
    "NodeReleased": {"rule": "back"},
    "ScriptAnswer": {"succeeded": True, "text": "GPU 3 was reset"},
    "Queue": {
        **_PAGE,
        "gangs": [
            {
                **_GANG,
                "reason": _ROOM,
                "position": 1,
                "gpus": 16,
                "expectedStart": "2026-01-31T15:10:00Z",
            }
        ],
    },
    "Gangs": {
        **_PAGE,
        "gangs": [
            {
                **_GANG,
                "reason": None,
                "state": "placed",
                "class": "guaranteed",
                "lender": None,
                "borrowed": {},
                "downgrade": None,
                "startedAt": "2026-01-31T13:01:00Z",
                "pods": 2,
                "gpus": 16,
            }
        ],
    },
    "Cells": {
        **_PAGE,
        "cells": [
            {
                "cell": "rack-1/node-7",
                "chain": "a100",
                "type": "node",
                "node": "node-7",
                "gpu": None,
                "health": "bad",
                "trouble": "GPU 3: it is unhealthy",
                "order": "cordon",
                "gpus": 8,
                "gpusHealthy": 7,
                "gpusUsed": 4,
                "gpusNominated": 0,
                "gpusFree": 0,
                "gpusBound": 8,
                "gpusReserved": 0,
                "reservedFor": None,
                "binding": {
                    "cell": "rack-1/node-7",
                    "virtualCluster": "vision",
                    "quota": "node",
                    "pin": None,
                },
                "priority": 100,
            }
        ],
    },
    "ShownAdvice": {
        "asOf": 4711,
        "chain": "a100",
        "cell": "rack",
        "wanted": 1,
        "cells": ["rack-1"],
        "freeAlready": 0,
        "gpus": 1,
        "lostGpuSeconds": 310.5,
        "isLeast": True,
        "isCut": False,
        "reason": None,
        "moves": [
            {
                "gang": "0193f0c2a7d4.0",
                "name": "notebook",
                "user": "ann",
                "virtualCluster": "vision",
                "priority": 0,
                "class": "guaranteed",
                "gpus": 1,
                "lostGpuSeconds": 310.5,
                "isSurplus": False,
                "lender": None,
                "pods": [
                    {
                        "pod": "0193f0c2a7d4-worker-0-0",
                        "from": {"node": "node-7", "gpus": [0]},
                        "to": {"node": "node-9", "gpus": [5]},
                    }
                ],
            }
        ],
    },
    "AuditPage": {
        "entries": [
            {
                "id": 42,
                "at": "2026-01-31T13:00:00.000Z",
                "username": "admin",
                "action": "node.drain",
                "object": "node-7",
                "address": "10.0.0.1",
                "detail": None,
            }
        ]
    },
    "ShownConfig": {
        "version": 3,
        "newest": _WHOLE,
        "scheduler": {
            "asOf": 4711,
            "isTaken": True,
            "version": 3,
            "problems": [],
            "inForce": _CONFIG,
            "rejectedFile": None,
        },
        "schedulerProblem": None,
    },
    "VersionList": {"versions": [_VERSION], "total": 3},
    "WholeVersion": _WHOLE,
    "AcceptedVersion": _WHOLE | {"warnings": [], "whatIf": _NOTHING},
    "ShownComparison": _NOTHING | {"warnings": []},
    "Rollback": {"version": 2, "comment": "too early", "whatIf": True, "acceptDelays": False},
    "MuteRequest": {"alert": "GpuHot", "until": "2026-02-01T08:00:00Z", "comment": "known"},
    "MutePage": {"mutes": [_MUTE], "total": 1},
    "MadeMute": _MUTE | {"note": None},
    "CheckedRules": {"trial": [_TRIAL], "notes": []},
    "AcceptedRules": _RULES | {"trial": [_TRIAL], "notes": []},
    "RulesNow": {"newest": _RULES},
    "RulesVersions": {"versions": [_VERSION], "total": 1},
    "RulesRollback": {"version": 2, "comment": "too early"},
    "ActionPage": {
        "actions": [
            {
                "action": "9c41d07a6a3f52be",
                "rule": "bad-gpus",
                "do": "cordon",
                "target": "gpu-7",
                "alert": "0f2c66b1a7e09d43",
                "name": "GpuXid",
                "state": "done",
                "reason": "gpu-7: order cordon.",
                "at": "2026-01-31T13:00:06+00:00",
            }
        ],
        "total": 1,
    },
    "AlertmanagerRequest": {
        "version": "4",
        "groupKey": '{}:{alertname="GpuHot"}',
        "status": "firing",
        "receiver": "muster",
        "truncatedAlerts": 0,
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "GpuHot", "severity": "warning", "node": "gpu-7"},
                "annotations": {"summary": "A GPU of gpu-7 is hot"},
                "startsAt": "2026-01-31T13:00:05Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus:9090/graph",
                "fingerprint": "4f2d0c9a1be03d57",
            }
        ],
    },
    "AlertPage": {
        "alerts": [
            {
                "alert": "0f2c66b1a7e09d43",
                "name": "NodeLost",
                "state": "firing",
                "severity": "critical",
                "summary": "Node gpu-7 is lost",
                "labels": {"node": "gpu-7"},
                "source": "alerting",
                "runbook": None,
                "startsAt": "2026-01-31T13:00:05+00:00",
                "endsAt": None,
            }
        ],
        "total": 1,
        "note": None,
    },
    "SubscriptionRequest": _SUBSCRIPTION,
    "SubscriptionPage": {
        "subscriptions": [_SHOWN_SUBSCRIPTION | {"health": _HEALTH}],
        "total": 1,
    },
    "ShownSubscription": _SHOWN_SUBSCRIPTION,
    "ChangedSubscription": _SHOWN_SUBSCRIPTION | {"note": None},
    "CreatedSubscription": _SHOWN_SUBSCRIPTION | {"note": None, "secrets": _SECRETS},
    "Secrets": {"secrets": _SECRETS},
    "DeliveryPage": {
        "receiver": _HEALTH,
        "deliveries": [
            {
                "id": "msg_9f86d081884c7d659a2feaa0c55ad015",
                "event": "job-failed/0193f0c2b0ab",
                "type": "job-failed",
                "title": "Job ann~train FAILED",
                "at": "2026-01-31T13:00:00.000Z",
                "state": "waiting",
                "attempts": 1,
                "nextAt": "2026-01-31T13:00:05.000Z",
                "endedAt": None,
                "why": None,
                "reason": "HTTP 500",
            }
        ],
        "total": 1,
    },
    "ReplayRequest": {"since": "2026-01-31T12:00:00Z", "until": "2026-01-31T13:00:00Z"},
    "OrderedTest": {"order": "0193f0c2b0ac", "event": "receiver-test/0193f0c2b0ac"},
    "OrderedReplay": {"order": "0193f0c2b0ac", "ended": 12, "waiting": 1},
}
