"""What must go in time: old Idempotency-Keys, expired tokens, failed passwords, codes
that confirm addresses, removed subscriptions, orders about nodes that are over, old entries of
the audit log, and usage reports of a year ago.
"""

import asyncio
from functools import partial

import structlog
from muster.db import Connection, Pool, is_transient

from rest.settings import RestSettings
from rest.store import (
    accounts,
    actions,
    audit,
    confirmations,
    jobs,
    mutes,
    node_orders,
    password_failures,
    subscriptions,
    usage,
)

_log = structlog.get_logger()


async def maintain(pool: Pool, settings: RestSettings) -> None:
    """Clean up now and then, until cancelled."""
    while True:
        await asyncio.sleep(settings.maintenance_s)
        try:
            async with pool.acquire() as conn:
                await clean_up(conn, settings)
        except Exception as error:
            if not is_transient(error):
                raise
            _log.warning("cleaning up is tried again later", error=str(error))


async def clean_up(conn: Connection, settings: RestSettings) -> None:
    """Each statement is a transaction. Long tables are cleaned in batches, until nothing old is
    left.
    """
    days, most = settings.removed_days, settings.maintenance_rows
    for forget in (
        partial(jobs.forget_answers, conn, settings.idempotency_hours, most),
        partial(accounts.purge_tokens, conn, most),
        partial(password_failures.forget_over, conn, most),
        partial(audit.forget_old, conn, settings.audit_days, most),
        partial(usage.forget_old, conn, most),
    ):
        while await forget() == most:
            pass
    await confirmations.end_expired(conn)
    await confirmations.forget_ended(conn, days)
    await subscriptions.forget_removed(conn, days)
    await node_orders.forget_over(conn, days)
    await actions.forget_old(conn, days + settings.topic_retention_days)
    await mutes.forget_over(conn, days)
