"""The routes: authorization, parsing, and answers from the database. Any replica answers."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import groupby
from typing import Any

from muster.db import Pool, is_transient
from muster.errors import Problem
from muster.settings import names_in
from muster.token_guard import TokenGuard
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from alerting.domain.actions import Action
from alerting.domain.deliveries import DeliveryPolicy, Receiver
from alerting.domain.event_rules import Trial, tried
from alerting.domain.events import Alert
from alerting.rules import KnownRules, after_trial, check, nearest_to_mute, unknown_alerts
from alerting.store import actions, alerts, deliveries
from alerting.store import rules as rule_store
from alerting.store.alerts import Wanted
from alerting.store.deliveries import ShownDelivery

Handle = Callable[[Request], Awaitable[Response]]

DIGITS = 9
MOST = 50_000
"""The most entries of one answer."""

STATES = {"firing": True, "resolved": False}


def routes(pool: Pool, guard: TokenGuard, known: KnownRules) -> list[Route]:
    """``/alerts?state=&name=&severity=&source=&user=&job=&node=&offset=&limit=``; with ``seenBy=``
    and ``virtualClusters=`` (by commas) only what is about this user's jobs, or these.
    ``/alerts/names?like=``: whether there is such a name, else the nearest ones.
    ``/actions?offset=&limit=``, ``POST /rules/check?trial=`` (``no``: it refuses nothing).
    """

    async def list_alerts(request: Request) -> Response:
        query = request.query_params
        names = ("name", "severity", "source", "user", "job", "node")
        wanted = Wanted(
            STATES.get(query.get("state", "")),
            **{each: query.get(each) for each in names},
            seen_by=query.get("seenBy"),
            virtual_clusters=tuple(names_in(query.get("virtualClusters", ""))),
        )
        async with pool.acquire() as conn:
            found, total = await alerts.list_alerts(conn, wanted, *_page(request))
        return JSONResponse({"alerts": [_shown(each) for each in found], "total": total})

    async def look_for_name(request: Request) -> Response:
        async with pool.acquire() as conn:
            seen = await alerts.names(conn)
        near = nearest_to_mute(request.query_params.get("like", ""), known.now, seen)
        return JSONResponse({"isKnown": near is None, "nearest": near or []})

    async def list_actions(request: Request) -> Response:
        async with pool.acquire() as conn:
            found, total = await actions.list_actions(conn, *_page(request))
        return JSONResponse({"actions": [_shown_action(each) for each in found], "total": total})

    async def check_rules(request: Request) -> Response:
        checked = check(await request.body())
        trials = []
        if checked.content is not None:
            by_kind = sorted((it for it, _ in checked.rules), key=lambda it: it.event)
            done: dict[str, Trial] = {}
            for event, rules in groupby(by_kind, key=lambda it: it.event):
                async with pool.acquire() as conn:
                    events = await rule_store.recent_events(conn, event)
                for rule in rules:
                    done[rule.name] = await asyncio.to_thread(tried, rule, events)
            trials = [done[rule.name] for rule, _ in checked.rules]
            if request.query_params.get("trial") != "no":
                checked = after_trial(checked, trials, known.now.texts)
        unknown = []
        if checked.content is not None:
            async with pool.acquire() as conn:
                unknown = unknown_alerts(checked.content, await alerts.names(conn))
        errors = [_shown_problem(each) for each in checked.problems]
        shown = [
            {"rule": it.rule, "fired": it.fired, "events": it.events, "failed": it.failed}
            for it in trials
        ]
        found = {"errors": errors, "trial": shown, "unknown": unknown}
        return JSONResponse({"content": checked.content, **found})

    return [
        Route("/alerts", _guarded(list_alerts, guard), methods=["GET"]),
        Route("/alerts/names", _guarded(look_for_name, guard), methods=["GET"]),
        Route("/actions", _guarded(list_actions, guard), methods=["GET"]),
        Route("/rules/check", _guarded(check_rules, guard), methods=["POST"]),
    ]


def delivery_routes(
    pool: Pool, guard: TokenGuard, policy: DeliveryPolicy, replay_most: int
) -> list[Route]:
    """``/deliveries?subscription=&state=&offset=&limit=``,
    ``/deliveries/replay?subscription=&named=&since=&until=`` (``named`` by commas): what a replay
    of these finds, ``/receivers?owner=``: those that fail.
    """

    async def list_deliveries(request: Request) -> Response:
        query = request.query_params
        subscription, state = query.get("subscription", ""), query.get("state")
        async with pool.acquire() as conn:
            receiver = await deliveries.show_receiver(conn, subscription)
            found, total = await deliveries.list_deliveries(
                conn, subscription, state, *_page(request)
            )
        return JSONResponse(
            {
                "receiver": _shown_receiver(receiver, policy),
                "deliveries": [_shown_delivery(each) for each in found],
                "total": total,
            }
        )

    async def find_to_replay(request: Request) -> Response:
        query = request.query_params
        subscription, named = query.get("subscription", ""), names_in(query.get("named", ""))
        since, until = _time(request, "since"), _time(request, "until")
        async with pool.acquire() as conn:
            found = await deliveries.find_to_replay(conn, subscription, named, since, until)
        ended = min(found.ended, replay_most)
        shown = {"ended": ended, "waiting": found.waiting, "unknown": found.unknown}
        return JSONResponse(shown)

    async def list_troubled(request: Request) -> Response:
        async with pool.acquire() as conn:
            owner = request.query_params.get("owner")
            found = await deliveries.troubled_receivers(conn, owner, MOST)
        shown = {it.subscription: _shown_receiver(it, policy) for it in found}
        return JSONResponse({"receivers": shown, "others": _shown_receiver(None, policy)})

    return [
        Route("/deliveries", _guarded(list_deliveries, guard), methods=["GET"]),
        Route("/deliveries/replay", _guarded(find_to_replay, guard), methods=["GET"]),
        Route("/receivers", _guarded(list_troubled, guard), methods=["GET"]),
    ]


def _guarded(answer: Handle, guard: TokenGuard) -> Handle:
    async def handle(request: Request) -> Response:
        if (why := guard.refusal(request)) is not None:
            return _error(401, "UnauthorizedUserError", why)
        try:
            return await answer(request)
        except Exception as error:
            if not is_transient(error):
                raise
            return _error(503, "BusyError", "Alerting's database does not answer.")

    return handle


def _page(request: Request) -> tuple[int, int]:
    return _number(request, "offset", 0), min(_number(request, "limit", MOST), MOST)


def _time(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    return None if text is None else datetime.fromisoformat(text)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else default


def _shown(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.fingerprint,
        "name": alert.name,
        "state": "firing" if alert.ends_at is None else "resolved",
        "severity": alert.severity,
        "summary": alert.summary,
        "labels": dict(alert.labels),
        "source": alert.source,
        "runbook": alert.runbook,
        "startsAt": alert.starts_at.isoformat(),
        "endsAt": None if alert.ends_at is None else alert.ends_at.isoformat(),
    }


def _shown_action(action: Action) -> dict[str, Any]:
    return {
        "action": action.action,
        "rule": action.rule,
        "do": action.do,
        "target": action.target,
        "alert": action.fingerprint,
        "name": action.name,
        "state": action.state,
        "reason": action.reason,
        "at": action.at.isoformat(),
    }


def _shown_problem(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
    }


def _shown_receiver(receiver: Receiver | None, policy: DeliveryPolicy) -> dict[str, Any]:
    known = receiver or Receiver("", "")
    return {
        "failures": known.failures,
        "pausedUntil": _iso(known.paused_until),
        "givenUp": known.given_up,
        "disabledAfter": policy.disable_after,
        "disabled": known.disabled,
    }


def _shown_delivery(delivery: ShownDelivery) -> dict[str, Any]:
    waits = delivery.state == "waiting"
    return {
        "id": delivery.id,
        "event": delivery.event,
        "type": delivery.name,
        "title": delivery.title,
        "at": _iso(delivery.at),
        "state": delivery.state,
        "attempts": delivery.attempts,
        "nextAt": _iso(delivery.next_at) if waits else None,
        "endedAt": _iso(delivery.ended_at),
        "why": delivery.why,
        "reason": delivery.reason,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)
