"""Virtual clusters and policy, as administrators set them: checked by the Scheduler, kept in
versions, published on settings-changed.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from muster.contracts.scheduling import SCHEDULING_SETTING
from muster.db import Pool, transaction
from muster.errors import Problem, Rejected, Transient
from pydantic import BaseModel, ValidationError

from rest.domain.callers import Caller
from rest.handlers.what_if import DELAYS, FAILED, RUNNING, SKIPPED, WhatIf, WhatIfs
from rest.metrics import RestMetrics
from rest.peers import Peers
from rest.settings import RestSettings
from rest.store import accounts, audit
from rest.store.versions import SCHEDULING, Change, Version

CHECK, SHOW = "/configuration/check", "/configuration"

REMOVAL = b""
"""Of which the Scheduler is asked what it would have made of the last days."""

CONFLICT = "ConflictConfigError"

OUTCOMES = {CONFLICT: "conflict", DELAYS: "delays", RUNNING: "comparing", FAILED: "uncompared"}
"""Of changes that are not made, by the code of the refusal; others are refused."""


class _Finding(BaseModel):
    """Something that the Scheduler says of a configuration."""

    path: str
    line: int | None = None
    message: str

    def problem(self) -> Problem:
        return Problem(self.path, self.message, self.line)


class _Checked(BaseModel):
    """Its answer to whether a text could be set."""

    content: dict[str, Any] | None
    errors: list[_Finding]
    warnings: list[_Finding]

    def problems(self) -> tuple[Problem, ...]:
        """The warnings, as they are answered."""
        return tuple(each.problem() for each in self.warnings)


class RejectedFile(BaseModel):
    """The cluster's file was changed and is wrong, so the previous one stays in force."""

    since: str
    problems: list[str]


class Running(BaseModel):
    """What the Scheduler says of what it runs; ``revision`` None: nothing that was ever set."""

    asOf: int
    revision: int | None
    version: int | None
    isHonoured: bool
    problems: list[_Finding]
    inForce: dict[str, Any]
    rejectedFile: RejectedFile | None = None


@dataclass(frozen=True, slots=True)
class Who:
    """Who changes it, from where, in place of which version (0: nothing was set ever), and why.
    ``asks_what_if``: what it would have made of the last days is looked at before;
    ``accepts_delays``: whatever that is.
    """

    caller: Caller
    address: str
    after: int
    comment: str = ""
    asks_what_if: bool = True
    accepts_delays: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A version that was made. ``warnings``: what in it has no effect, or may not be meant.
    ``what_if``: what it would have made of the last days.
    """

    version: Version
    warnings: tuple[Problem, ...]
    what_if: WhatIf


@dataclass(frozen=True, slots=True)
class Compared:
    """What a change would have made of the last days. ``warnings``: its warnings."""

    what_if: WhatIf
    warnings: tuple[Problem, ...] = ()


class Configuration:
    """Virtual clusters and policy, as administrators set them. ``wake`` follows each change."""

    def __init__(
        self,
        pool: Pool,
        peers: Peers,
        settings: RestSettings,
        metrics: RestMetrics,
        wake: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._peers = peers
        self._settings = settings
        self._metrics = metrics
        self._wake = wake
        self._what_ifs = WhatIfs(peers, settings)

    async def newest(self) -> Version | None:
        """What holds now; None: nothing was set ever."""
        async with self._pool.acquire() as conn:
            return await SCHEDULING.newest(conn)

    async def find(self, number: int) -> Version:
        """One version. Raises Rejected where it is not kept."""
        async with self._pool.acquire() as conn:
            found = await SCHEDULING.find(conn, number)
        if found is None:
            kept = self._settings.config_versions
            message = f"There is no version {number}; the last {kept} are kept."
            raise Rejected("NoConfigError", message)
        return found

    async def read(self, offset: int, limit: int) -> tuple[list[Version], int]:
        """Versions, newest first, and how many there are."""
        async with self._pool.acquire() as conn:
            return await SCHEDULING.read(conn, offset, limit), await SCHEDULING.count(conn)

    async def running(self) -> Running:
        """What the Scheduler says of what it runs. Raises Transient, Rejected."""
        answer = await self._peers.must_ask_scheduler(SHOW, {})
        try:
            return Running.model_validate(answer)
        except ValidationError as error:
            raise Transient(
                "The Scheduler's configuration can't be read. Try again later."
            ) from error

    async def set(self, text: bytes, who: Who) -> Made:
        """Set what a text says. Raises Rejected, Transient."""
        with self._counted():
            await self._check_after(who)
            checked = await self._checked(text, "The configuration")
            change = Change(checked.content, who.caller.username, who.comment)
            return await self._made(change, who, await self._compared(text, who), checked)

    async def roll_back(self, number: int, who: Who) -> Made:
        """Set again what a version has. Raises Rejected, Transient."""
        with self._counted():
            await self._check_after(who)
            found = await self.find(number)
            change = Change(found.change.content, who.caller.username, who.comment, number)
            if change.content is None:
                return await self._made(change, who, await self._compared(REMOVAL, who))
            text = json.dumps(change.content).encode()
            checked = await self._checked(text, f"Version {number}", has_lines=False)
            return await self._made(change, who, await self._compared(text, who), checked)

    async def remove(self, who: Who) -> Made:
        """Set nothing any more. Whether that can be is not asked: what is below it stands for
        itself. Raises Rejected.
        """
        with self._counted():
            await self._check_after(who)
            change = Change(None, who.caller.username, who.comment)
            return await self._made(change, who, await self._compared(REMOVAL, who))

    async def what_if(self, text: bytes) -> Compared:
        """What a text would have made of the last days; nothing is set.

        Raises Rejected, Transient.
        """
        checked = await self._checked(text, "The configuration")
        return Compared(await self._what_ifs.ask(text), checked.problems())

    async def what_if_removed(self) -> Compared:
        """The same of nothing being set any more."""
        return Compared(await self._what_ifs.ask(REMOVAL))

    async def what_if_again(self, number: int) -> Compared:
        """The same of what a version has."""
        content = (await self.find(number)).change.content
        if content is None:
            return await self.what_if_removed()
        text = json.dumps(content).encode()
        checked = await self._checked(text, f"Version {number}", has_lines=False)
        return Compared(await self._what_ifs.ask(text), checked.problems())

    async def _compared(self, text: bytes, who: Who) -> WhatIf:
        if not who.asks_what_if:
            return SKIPPED
        return await self._what_ifs.must_admit(text, accepts_delays=who.accepts_delays)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        outcome = "accepted"
        try:
            yield
        except Rejected as error:
            outcome = OUTCOMES.get(error.code, "refused")
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._metrics.config_changes.labels(outcome).inc()

    async def _check_after(self, who: Who) -> None:
        """Before the Scheduler is asked, which takes longer. Raises Rejected."""
        newest = await self.newest()
        if (0 if newest is None else newest.number) != who.after:
            raise _conflict(newest)

    async def _checked(self, text: bytes, what: str, *, has_lines: bool = True) -> _Checked:
        """What the Scheduler says of a text that could be set. Raises Rejected where it can't be,
        Transient where that is not known.
        """
        within_s = self._settings.config_check_s
        try:
            answer = await self._peers.ask_scheduler_about(CHECK, text, within_s)
            checked = _Checked.model_validate(answer)
        except (Transient, ValidationError) as error:
            message = "The Scheduler can't check this change, so nothing was changed."
            raise Transient(f"{message} Try again when it answers.") from error
        if not has_lines:  # nobody has seen the text
            for each in (*checked.errors, *checked.warnings):
                each.line = None
        if checked.content is None:
            raise _invalid(what, [each.problem() for each in checked.errors])
        most = self._settings.config_bytes
        if len(json.dumps(checked.content)) > most:  # aliases are repeated in it
            raise _invalid(what, [Problem("", f"has more than {most} bytes with all aliases")])
        return checked

    async def _made(
        self,
        change: Change,
        who: Who,
        what_if: WhatIf,
        checked: _Checked | None = None,
    ) -> Made:
        async with transaction(self._pool) as conn:
            await accounts.check_rights(conn, who.caller)
            version = await SCHEDULING.add(conn, change, who.after)
            if version is None:
                raise _conflict(await SCHEDULING.newest(conn))
            await SCHEDULING.forget_old(conn, self._settings.config_versions)
            entry = audit.Entry(
                who.caller.username,
                _action(change),
                SCHEDULING_SETTING,
                who.address,
                _detail(version, what_if),
            )
            await audit.record(conn, [entry])
        self._wake()
        return Made(version, () if checked is None else checked.problems(), what_if)


def _action(change: Change) -> str:
    if change.rolled_back_to is not None:
        return "config.rollback"
    return "config.remove" if change.content is None else "config.set"


def _detail(version: Version, what_if: WhatIf) -> dict[str, Any]:
    detail: dict[str, Any] = {"version": version.number}
    if version.change.comment:
        detail["comment"] = version.change.comment
    if version.change.rolled_back_to is not None:
        detail["rolledBackTo"] = version.change.rolled_back_to
    if (found := what_if.audited()) is not None:
        detail["whatIf"] = found
    return detail


def _conflict(newest: Version | None) -> Rejected:
    if newest is None:
        message = "No configuration is set: send version 0."
    else:
        message = (
            f"Version {newest.number} holds now, by {newest.change.by}: look at it, and say this"
            " number if yours is to follow it."
        )
    return Rejected(CONFLICT, message)


def _invalid(what: str, problems: list[Problem]) -> Rejected:
    first = problems[0] if problems else Problem("", "can't be honoured")
    line = f"Line {first.line}: " if first.line else ""
    path = f"`{first.path}` " if first.path else ""
    count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
    message = f"{what} has {count}. {line}{path}{first.message}."
    return Rejected("InvalidConfigError", message, tuple(problems))
