"""Actions that Alerting requests because of alerts: cordon or drain a node, stop or tag a job, take
it back. They are the commands of administrators, in the name of `(alerting)`, which has no other
rights.

Every replica follows the requests, and the database lets one of them carry each out.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from muster.channels import Outgoing
from muster.contracts.alerts import ActionAnswered, ActionRequested, Do, Outcome
from muster.contracts.model import Model
from muster.contracts.node_orders import Order
from muster.db import Transaction, is_transient
from muster.errors import Rejected
from muster.records import Received
from muster.relay import Relay

from rest.cluster import Cluster
from rest.domain.callers import Caller
from rest.handlers.order import By, give_order
from rest.handlers.publish import SettingsPublisher
from rest.handlers.stop import stop_for_alert
from rest.handlers.tag import TagChange, tag_for_alert
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import accounts, actions, audit, node_orders

_log = structlog.get_logger()

REQUESTED, ANSWERED = "action-requested", "action-answered"
ME = node_orders.ALERTING
WAITING = 1000
"""Requests in memory; Alerting repeats the others."""
REQUESTS_HOLD = timedelta(minutes=10)
"""Older requests are not carried out: a start reads the topic from its beginning. Alerting repeats
each unanswered one every minute, with a new time.
"""

ORDERS = {Do.CORDON: Order.CORDON, Do.DRAIN: Order.DRAIN}


class Actions:
    """Carries requested actions out, one at a time."""

    def __init__(
        self, relay: Relay, cluster: Cluster, publisher: SettingsPublisher, metrics: RestMetrics
    ) -> None:
        self._relay = relay
        self._cluster = cluster
        self._publisher = publisher
        self._metrics = metrics
        self._requests: asyncio.Queue[ActionRequested] = asyncio.Queue(WAITING)

    def on_record(self, _record: Received, model: Model | None) -> None:
        """Take a request."""
        if isinstance(model, ActionRequested) and not self._requests.full():
            self._requests.put_nowait(model)

    async def run(self, settings: RestSettings) -> None:
        """Carry out until cancelled."""
        while True:
            request = await self._requests.get()
            try:
                async with self._relay.transaction() as opened:
                    await self._carry_out(opened, request)
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("an action waits", action=request.action, error=str(error))
                await asyncio.sleep(settings.retry_longest_s)  # Alerting repeats it
            else:
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
            if answer.outcome is not Outcome.UNDONE:
                raise Rejected("ConflictActionError", answer.reason)
        self._publisher.wake()
        return answer

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
                _answer(opened, request.action, Outcome.REFUSED, reason)
            return
        if not await actions.take(opened.conn, request):
            known = await actions.lock_action(opened.conn, request.action)
            if known is not None:
                _answer(opened, request.action, known.outcome, known.reason)
            return
        outcome, reason = await self._do(opened, request, by)
        await actions.finish(opened.conn, request.action, outcome, reason)
        self._metrics.actions.labels(request.do, outcome).inc()
        _answer(opened, request.action, outcome, reason)
        _log.info("an action", do=request.do, target=request.target, outcome=outcome, why=reason)

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
        await give_order(conn, node, order, by, is_known=is_known)
        return Outcome.DONE, f"{node}: order {order.value}."

    async def _undo(self, opened: Transaction, action: str, by: By) -> ActionAnswered | None:
        """The answer; None where there is nothing to take back."""
        conn = opened.conn
        known = await actions.lock_action(conn, action)
        if known is None or known.outcome not in (Outcome.DONE, Outcome.UNDONE):
            return None
        if known.outcome is Outcome.UNDONE:
            return _answer(opened, action, Outcome.UNDONE, known.reason)
        if known.do not in ORDERS:
            return _answer(opened, action, Outcome.DONE, f"{known.do} can't be taken back.")
        node = known.target
        _, giver = await node_orders.lock_order(conn, node) or (None, None)
        if giver == ME:
            left = {ORDERS[do] for do in await actions.done_to(conn, node, action) if do in ORDERS}
            order = next((it for it in (Order.DRAIN, Order.CORDON) if it in left), Order.NONE)
            await give_order(conn, node, order, replace(by, username=ME), is_known=True)
            reason = f"{node}: order {order.value}."
        else:
            reason = f"{giver} has given {node} another order: it stands."
        entry = audit.Entry(by.username, "action.undo", node, by.address, {"action": action})
        await audit.record(conn, [entry])
        await actions.note_undone(conn, action, by.username, reason)
        self._metrics.actions.labels(known.do, Outcome.UNDONE).inc()
        return _answer(opened, action, Outcome.UNDONE, reason, by.username)


def _answer(
    opened: Transaction, action: str, outcome: Outcome, reason: str, by: str | None = None
) -> ActionAnswered:
    answer = ActionAnswered(action=action, outcome=outcome, reason=reason, by=by, at=opened.now)
    value = answer.model_dump_json(exclude_none=True).encode()
    event_id = f"rest/action/{action}/{outcome}"
    opened.notices.append(Outgoing(ANSWERED, action, value, event_id, opened.now.timestamp()))
    return answer
