"""What must go in time: old Idempotency-Keys, expired tokens, failed passwords, codes
that confirm addresses, removed subscriptions, orders about nodes that are over, and old entries of
the audit log.
"""

import asyncio

import structlog
from muster.db import Pool, is_transient, transaction

from rest.settings import RestSettings
from rest.store import (
    accounts,
    audit,
    confirmations,
    jobs,
    node_orders,
    password_failures,
    subscriptions,
)

_log = structlog.get_logger()


async def maintain(pool: Pool, settings: RestSettings) -> None:
    """Clean up now and then, until cancelled."""
    while True:
        await asyncio.sleep(settings.maintenance_s)
        try:
            async with transaction(pool) as conn:
                await jobs.forget_answers(conn, settings.idempotency_hours)
                await accounts.purge_tokens(conn)
                await password_failures.forget_over(conn)
                await confirmations.end_expired(conn)
                await confirmations.forget_ended(conn, settings.removed_days)
                await subscriptions.forget_removed(conn, settings.removed_days)
                await node_orders.forget_over(conn, settings.removed_days)
                await audit.forget_old(conn, settings.audit_days, settings.maintenance_rows)
        except Exception as error:
            if not is_transient(error):
                raise
            _log.warning("cleaning up is tried again later", error=str(error))
