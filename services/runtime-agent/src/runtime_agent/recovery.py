"""What an agent finds on its node at its start, and the journal does not know, ends first."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection

import structlog

from runtime_agent.runner import Runner
from runtime_agent.store import Journal

POLL_S = 0.05

_log = structlog.get_logger()


def is_of_another_machine(journal: Journal, machine: str) -> bool:
    """Whether the journal counts as lost here."""
    return journal.machine not in (None, machine)


async def end_unknown(
    journal: Journal, runner: Runner, machine: str, known: Collection[str]
) -> None:
    """Ends pods that the journal does not know: all of them where it is new, or is reset because it
    belongs to another machine. `known`: the names in it at the agent's start, for it may be told
    meanwhile to stop a pod that it does not know.

    Raises Broken where a pod can't be ended: then no other may start.
    """
    await runner.ready()
    names = runner.names()
    is_lost = is_of_another_machine(journal, machine)
    if is_lost:
        _log.warning(
            "the journal belongs to another machine: this one ends all pods that it finds of it,"
            " forgets what is in it, and begins a new one; logs stay",
            journal=journal.id,
            pods=len(names),
        )
    left = [name for name in names if is_lost or name not in known]
    while left := [name for name in left if not _end(runner, name, is_lost=is_lost)]:
        await asyncio.sleep(POLL_S)
    if is_lost:  # not before: a crash until here begins all this again
        journal.begin_anew(fresh_id(), machine)


def _end(runner: Runner, name: str, *, is_lost: bool) -> bool:
    try:
        return runner.end_now(name, of_another_machine=is_lost)
    except OSError as error:
        _log.error("a pod can't be ended; trying again", pod=name, error=str(error))
        return False


def fresh_id() -> str:
    """Of a journal."""
    return secrets.token_hex(8)
