"""Actions that Alerting requests because of alerts: cordon or drain a node, have it remediated,
release it after a preflight job, stop or tag a job, take it back. They are the commands of
administrators, in the name of `(alerting)`, which has no other rights.

Every replica follows the requests, and the database lets one of them carry each out.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from muster.channels import Outgoing
from muster.codes import Code, script_code
from muster.contracts.alerts import REPAIRS, ActionAnswered, ActionRequested, Do, Outcome
from muster.contracts.model import Model
from muster.contracts.node_orders import Order
from muster.db import Connection, Transaction, is_transient
from muster.errors import Rejected
from muster.records import Received
from muster.relay import Relay

from rest.cluster import Cluster
from rest.domain import repairs
from rest.domain.callers import Caller
from rest.domain.repairs import Ended
from rest.handlers.order import By, give_order
from rest.handlers.preflight import look_at, release_rule, submit_preflight, timeout_of
from rest.handlers.publish import SettingsPublisher
from rest.handlers.stop import stop_for_alert
from rest.handlers.tag import TagChange, tag_for_alert
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import accounts, actions, audit, node_orders
from rest.store.actions import Action

_log = structlog.get_logger()

REQUESTED, ANSWERED = "action-requested", "action-answered"
ME = node_orders.ALERTING
WAITING = 1000
"""Requests in memory; Alerting repeats the others."""
REQUESTS_HOLD = timedelta(minutes=10)
"""Older requests are not carried out: a start reads the topic from its beginning. Alerting repeats
each unanswered one every minute, with a new time.
"""

LOOK_S = 2.0
"""How often the ends of scripts and preflight jobs are looked for."""
LOOKED_AT = 100
"""The most of them in one look."""

ORDERS = {Do.CORDON: Order.CORDON, Do.DRAIN: Order.DRAIN}


class Actions:
    """Carries requested actions out, one at a time."""

    def __init__(
        self,
        relay: Relay,
        cluster: Cluster,
        publisher: SettingsPublisher,
        metrics: RestMetrics,
        settings: RestSettings,
    ) -> None:
        self._relay = relay
        self._cluster = cluster
        self._publisher = publisher
        self._metrics = metrics
        self._settings = settings
        self._requests: asyncio.Queue[ActionRequested] = asyncio.Queue(WAITING)

    def on_record(self, _record: Received, model: Model | None) -> None:
        """Take a request."""
        if isinstance(model, ActionRequested) and not self._requests.full():
            self._requests.put_nowait(model)

    async def run(self) -> None:
        """Carry out until cancelled."""
        while True:
            request = await self._requests.get()
            async with self._or_wait(request.action), self._relay.transaction() as opened:
                await self._carry_out(opened, request)
            self._publisher.wake()

    async def follow_repairs(self) -> None:
        """Look for the ends of scripts and preflight jobs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            has_ended = False
            async with self._or_wait("repairs"), self._relay.transaction() as opened:
                for each in await actions.lock_running(opened.conn, LOOKED_AT):
                    has_ended |= await self._look_at(opened, each)
            if has_ended:
                self._publisher.wake()

    async def undo(self, action: str, caller: Caller, address: str) -> ActionAnswered:
        """Take an action back. Raises Rejected where there is none to take back, or the caller has
        lost their rights.
        """
        async with self._relay.transaction() as opened:
            await accounts.check_rights(opened.conn, caller)
            answer = await self._undo(opened, action, By(caller.username, address))
            if answer is None:
                raise Rejected("NoActionError", f"There is no action {action[:64]} that was done.")
            if answer.outcome not in (Outcome.UNDONE, Outcome.FAILED):
                raise Rejected("ConflictActionError", answer.reason)
        self._publisher.wake()
        return answer

    async def answer(self, action: str, ended: Ended, who: Caller | Code, address: str) -> str:
        """A script has remediated its node, or failed; it says so itself, by its code, or an admin
        does. Raises Rejected where nobody waits for it, or who says so may not (any more).
        """
        async with self._relay.transaction() as opened:
            if isinstance(who, Caller):
                await accounts.check_rights(opened.conn, who)
            known = await actions.lock_action(opened.conn, action)
            if not isinstance(who, Caller):
                self._check_code(action, who, known, opened.now)
            if known is None or known.do is not Do.REMEDIATE:
                message = f"There is no action {action[:64]} that waits for a script's answer."
                raise Rejected("NoActionError", message)
            if known.outcome is not Outcome.RUNNING:
                message = f"The action {action} waits no longer: it is {known.outcome.value}."
                raise Rejected("ConflictActionError", message)
            by = who.username if isinstance(who, Caller) else ME
            await self._end(opened, known, ended, By(by, address))
        return ended.reason

    async def release(self, node: str, rule: str, caller: Caller, address: str) -> str:
        """A person wants a node back once the rule's preflight job has succeeded there; returns the
        job. Raises Rejected.
        """
        async with self._relay.transaction() as opened:
            conn = opened.conn
            await accounts.check_rights(conn, caller)
            content, _ = await release_rule(conn, rule)
            here = await actions.lock_actions_on(conn, node)
            if busy := next((it for it in here if it.outcome is Outcome.RUNNING), None):
                message = f"The action {busy.action} ({busy.do}) on {node} goes on: {busy.reason}"
                raise Rejected("ConflictActionError", message)
            by = By(caller.username, address)
            for failed in (it for it in here if it.outcome is Outcome.FAILED):
                await self._set_aside(opened, failed, by, f"{by.username} tests {node} again.")
            request = ActionRequested(
                action=secrets.token_hex(8),
                do=Do.RELEASE,
                target=node,
                rule=rule,
                alert="",
                summary=f"{by.username} asked for it.",
                timeout_s=timeout_of(content),
                takes_back=tuple(it.action for it in here if it.do in ORDERS),
                at=opened.now,
            )
            await actions.take(conn, request)
            detail = {"action": request.action, "rule": rule}
            asked = await self._start(opened, request, replace(by, detail=detail), by.username)
        return asked.reason

    async def order(
        self, node: str, order: Order, caller: Caller, address: str, *, is_known: bool
    ) -> Order | None:
        """A person's order about a node, and the one before. What rules did to the node is over:
        the person has taken it. Raises Rejected.
        """
        async with self._relay.transaction() as opened:
            await accounts.check_rights(opened.conn, caller)
            by = By(caller.username, address)
            before = await give_order(opened.conn, node, order, by, is_known=is_known)
            for each in await actions.lock_actions_on(opened.conn, node):
                reason = f"{by.username} has ordered {order.value} of {node}."
                await self._set_aside(opened, each, by, reason)
        self._publisher.wake()
        return before

    def _check_code(self, action: str, code: Code, known: Action | None, now: datetime) -> None:
        """Raises Rejected unless it is of this action's script, and in time."""
        key = self._settings.webhook_key.get_secret_value()
        until = None
        if known is not None and known.do is Do.REMEDIATE:
            until = known.ends_by
        is_right = (
            bool(key)
            and until is not None
            and until > now
            and secrets.compare_digest(script_code(key, action, until), code)
        )
        if not is_right:
            message = "The code is wrong, of another action, or its time is over."
            raise Rejected("UnauthorizedUserError", message)

    @asynccontextmanager
    async def _or_wait(self, what: str) -> AsyncIterator[None]:
        """What can't be done now waits, a transaction that can't be opened too: Alerting repeats
        requests.
        """
        try:
            yield
        except Exception as error:
            if not is_transient(error):
                raise
            _log.warning("an action waits", action=what, error=str(error))
            await asyncio.sleep(self._settings.retry_longest_s)

    async def _carry_out(self, opened: Transaction, request: ActionRequested) -> None:
        if request.at < opened.now - REQUESTS_HOLD:
            return
        detail: dict[str, Any] = {
            "action": request.action,
            "rule": request.rule,
            "alert": request.alert,
            "summary": request.summary,
        }
        by = By(ME, "", detail)
        if request.do is Do.UNDO:
            if await self._undo(opened, request.action, by) is None:
                reason = "There is no such action any more."
                _answer(opened, _asked(request), Outcome.REFUSED, reason)
            return
        if not await actions.take(opened.conn, request):
            known = await actions.lock_action(opened.conn, request.action)
            if known is not None:
                _answer(opened, known, known.outcome, known.reason)
            return
        if request.do in REPAIRS and not request.is_dry_run:
            await self._start(opened, request, by, None)
            return
        outcome, reason = await self._do(opened, request, by)
        await actions.finish(opened.conn, request.action, outcome, reason)
        self._metrics.actions.labels(request.do, outcome).inc()
        _answer(opened, _asked(request), outcome, reason)
        _log.info("an action", do=request.do, target=request.target, outcome=outcome, why=reason)

    async def _start(
        self, opened: Transaction, request: ActionRequested, by: By, asked_by: str | None
    ) -> ActionAnswered:
        """Let a script or a preflight job begin; where it can't, the action has failed."""
        conn, node = opened.conn, request.target
        job = None
        reason = (
            f"A script is to remediate {node}: a receiver of remediation-requested, or a person by"
            f" `muster alerts answer {request.action}`."
        )
        try:
            if request.do is Do.RELEASE:
                known = self._cluster.node(node)
                job = await submit_preflight(opened, known, self._settings, request)
                reason = f"The preflight job {job} tests {node}."
            else:
                _check_taken(node, await node_orders.lock_order(conn, node))
        except Rejected as error:
            if asked_by is not None:
                raise
            ended = Ended(Outcome.FAILED, str(error))
            return await self._end(opened, _asked(request), ended, by)
        asked = replace(_asked(request), reason=reason, job=job, asked_by=asked_by)
        until = await actions.start(conn, asked, request.timeout_s)
        detail = (by.detail or {}) | ({} if job is None else {"job": job})
        entry = audit.Entry(by.username, f"node.{request.do}", node, by.address, detail)
        await audit.record(conn, [entry])
        self._metrics.actions.labels(request.do, Outcome.RUNNING).inc()
        _log.info("a repair", do=request.do, target=node, why=reason)
        return _answer(opened, replace(asked, ends_by=until), Outcome.RUNNING, reason, asked_by)

    async def _look_at(self, opened: Transaction, known: Action) -> bool:
        """End a repair that has ended, or has no time left; whether it was so."""
        is_late = known.ends_by is not None and known.ends_by <= opened.now
        if known.do is Do.RELEASE:
            ended = await look_at(opened.conn, known, is_late=is_late)
        else:
            ended = repairs.script_is_late() if is_late else None
        if ended is not None:
            await self._end(opened, known, ended, By(ME, ""))
        return ended is not None

    async def _end(
        self, opened: Transaction, known: Action, ended: Ended, by: By
    ) -> ActionAnswered:
        """A repair has ended. A preflight job that has succeeded gives its node back."""
        conn, node = opened.conn, known.target
        detail = {"action": known.action, "rule": known.rule, "reason": ended.reason}
        how = "succeeded" if ended.outcome is Outcome.DONE else "failed"
        entry = audit.Entry(by.username, f"node.{known.do}.{how}", node, by.address, detail)
        await audit.record(conn, [entry])
        await self._stop_job(opened, known, by)
        reason = ended.reason
        if known.do is Do.RELEASE and ended.outcome is Outcome.DONE:
            reason = f"{reason} {await self._give_back(opened, known)}"
        await actions.finish(conn, known.action, ended.outcome, reason)
        self._metrics.actions.labels(known.do, ended.outcome).inc()
        _log.info("a repair has ended", do=known.do, target=node, outcome=ended.outcome, why=reason)
        return _answer(opened, known, ended.outcome, reason, known.asked_by)

    async def _stop_job(self, opened: Transaction, known: Action, by: By) -> None:
        """A preflight job that has not ended is stopped."""
        if known.job is None:
            return
        username, _, name = known.job.partition("~")
        try:
            await stop_for_alert(opened, username, name, by)
        except Rejected:
            _log.debug("the preflight job is over", job=known.job)

    async def _give_back(self, opened: Transaction, known: Action) -> str:
        """The orders of these actions end, and a person's where a person asked for it; what is
        ordered of the node now. What rules have ordered since then stands.
        """
        conn, node = opened.conn, known.target
        for action in known.takes_back:
            each = await actions.lock_action(conn, action)
            if each is not None and each.outcome is Outcome.DONE:
                reason = f"The preflight job {known.job} succeeded."
                await self._set_aside(opened, each, By(ME, ""), reason)
        is_free = await self._left(conn, node, known.action) is Order.NONE
        if known.asked_by is not None and is_free:
            by = By(known.asked_by, "", {"action": known.action})
            await give_order(conn, node, Order.NONE, by, is_known=True)
            return f"{node}: order none."
        return await self._lessen(conn, node, known.action, By(ME, "", {"action": known.action}))

    async def _lessen(self, conn: Connection, node: str, but: str, by: By) -> str:
        """The order that is left of those of rules; a person's order stands."""
        _, giver = await node_orders.lock_order(conn, node) or (None, None)
        if giver != ME:
            return f"{giver} has given {node} another order: it stands."
        order = await self._left(conn, node, but)
        await give_order(conn, node, order, by, is_known=True)
        return f"{node}: order {order.value}."

    async def _left(self, conn: Connection, node: str, but: str) -> Order:
        """What other actions order of a node."""
        left = {ORDERS[do] for do in await actions.done_to(conn, node, but) if do in ORDERS}
        return next((it for it in (Order.DRAIN, Order.CORDON) if it in left), Order.NONE)

    async def _set_aside(
        self, opened: Transaction, known: Action, by: By, reason: str
    ) -> ActionAnswered:
        """An action counts no more; its node's order is another's business."""
        await self._stop_job(opened, known, by)
        await actions.note_undone(opened.conn, known.action, by.username, reason)
        self._metrics.actions.labels(known.do, Outcome.UNDONE).inc()
        return _answer(opened, known, Outcome.UNDONE, reason, by.username)

    async def _do(
        self, opened: Transaction, request: ActionRequested, by: By
    ) -> tuple[Outcome, str]:
        """What became of it, and why."""
        conn, target = opened.conn, request.target
        if request.is_dry_run:
            entry = audit.Entry(ME, f"dry-run.{request.do}", target, "", by.detail)
            await audit.record(conn, [entry])
            return Outcome.DRY_RUN, f"A dry run: {request.do} of {target} was not done."
        try:
            if request.do in ORDERS:
                return await self._order(opened, request, by)
            username, _, name = target.partition("~")
            if request.do is Do.STOP_JOB:
                await stop_for_alert(opened, username, name, by)
                return Outcome.DONE, f"{target} is asked to stop."
            if request.do is Do.TAG_JOB:
                await tag_for_alert(conn, TagChange(username, name, request.rule), by)
                return Outcome.DONE, f"{target} has the tag {request.rule}."
        except Rejected as error:
            return Outcome.REFUSED, str(error)
        return Outcome.REFUSED, "This version of REST does not know how to do this."

    async def _order(
        self, opened: Transaction, request: ActionRequested, by: By
    ) -> tuple[Outcome, str]:
        conn, node, order = opened.conn, request.target, ORDERS[request.do]
        standing, giver = await node_orders.lock_order(conn, node) or (Order.NONE, ME)
        if standing is not Order.NONE and giver != ME:
            return Outcome.REFUSED, f"{giver} has ordered {standing} of {node}: it stands."
        if standing is Order.DRAIN:
            order = Order.DRAIN  # a cordon by another rule does not end it
        is_known = self._cluster.node(node) is not None
        if order is standing:  # it has no entry of its own
            entry = audit.Entry(ME, f"node.{request.do}", node, "", by.detail)
            await audit.record(conn, [entry])
        await give_order(conn, node, order, by, is_known=is_known)
        return Outcome.DONE, f"{node}: order {order.value}."

    async def _undo(self, opened: Transaction, action: str, by: By) -> ActionAnswered | None:
        """The answer; None where there is nothing to take back."""
        conn = opened.conn
        known = await actions.lock_action(conn, action)
        if known is None or known.outcome in (Outcome.REFUSED, Outcome.DRY_RUN):
            return None
        node = known.target
        if known.outcome is Outcome.UNDONE:
            return _answer(opened, known, Outcome.UNDONE, known.reason)
        if known.outcome is Outcome.RUNNING:
            return await self._end(
                opened, known, Ended(Outcome.FAILED, f"{by.username} ended it."), by
            )
        if known.outcome is Outcome.FAILED and known.do is Do.RELEASE:
            reason = f"{node} was not released. Release it with `muster nodes uncordon {node}`."
            return _answer(opened, known, Outcome.DONE, reason)
        if known.outcome is Outcome.FAILED:
            reason = f"{by.username} has set the failure aside."
        elif known.do in ORDERS:
            reason = await self._lessen(conn, known.target, action, replace(by, username=ME))
        else:
            return _answer(opened, known, Outcome.DONE, f"{known.do} can't be taken back.")
        entry = audit.Entry(by.username, "action.undo", node, by.address, {"action": action})
        await audit.record(conn, [entry])
        return await self._set_aside(opened, known, by, reason)


def _check_taken(node: str, order: tuple[Order, str] | None) -> None:
    """Raises Rejected unless a rule's order keeps jobs away from the node."""
    if order is None or order[0] is Order.NONE or order[1] != ME:
        message = f"{node} is neither cordoned nor drained by a rule."
        raise Rejected("ConflictActionError", message)


def _asked(request: ActionRequested) -> Action:
    """A requested action, as it is before it is carried out."""
    return Action(request.action, request.do, request.target, Outcome.REFUSED, "", request.rule)


def _answer(
    opened: Transaction, known: Action, outcome: Outcome, reason: str, by: str | None = None
) -> ActionAnswered:
    is_asked = known.asked_by is not None
    answer = ActionAnswered(
        action=known.action,
        outcome=outcome,
        reason=reason,
        by=by,
        until=known.ends_by,
        do=known.do if is_asked else None,
        target=known.target if is_asked else None,
        rule=known.rule if is_asked else None,
        at=opened.now,
    )
    value = answer.model_dump_json(exclude_none=True).encode()
    event_id = f"rest/action/{known.action}/{outcome}"
    opened.notices.append(Outgoing(ANSWERED, known.action, value, event_id, opened.now.timestamp()))
    return answer
