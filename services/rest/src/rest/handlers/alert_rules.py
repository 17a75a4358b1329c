"""Rules for alerts, as administrators set them: checked by Alerting, kept in versions, published on
settings-changed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster.contracts.alerts import ALERT_RULES_SETTING
from muster.db import Pool, transaction
from muster.errors import Problem, Rejected, Transient
from pydantic import BaseModel, ValidationError

from rest.domain.callers import Caller
from rest.leader import Query
from rest.peers import Peers
from rest.settings import RestSettings
from rest.store import accounts, audit
from rest.store.versions import ALERT_RULES, Change, Version

CHECK = "/rules/check"


class Finding(BaseModel):
    """Something wrong with a text, and its place."""

    path: str
    line: int | None = None
    column: int | None = None
    message: str

    def problem(self) -> Problem:
        return Problem(self.path, self.message, self.line, self.column)


class UnknownAlert(BaseModel):
    """A name of an alert that an action waits for, and nobody knows; and names that are like it."""

    action: str
    alert: str
    nearest: list[str]

    def note(self) -> str:
        fault = no_such("alert", self.alert, self.nearest)
        return f"Action {self.action}: {fault} It acts once there is such an alert."


class Checked(BaseModel):
    """Alerting's answer to whether a text could be set. ``trial``: what it would have done."""

    content: dict[str, Any] | None
    errors: list[Finding]
    trial: list[dict[str, Any]] = []
    unknown: list[UnknownAlert] = []

    def findings(self) -> dict[str, Any]:
        """What is told of a text that can be set."""
        return {"trial": self.trial, "notes": [each.note() for each in self.unknown]}


@dataclass(frozen=True, slots=True)
class Who:
    """Who sets it, from where, and why. ``after``: the version that it follows; None: any."""

    caller: Caller
    address: str
    comment: str = ""
    after: int | None = None


class AlertRules:
    """What administrators have set. ``wake`` follows each change."""

    def __init__(
        self, pool: Pool, peers: Peers, settings: RestSettings, wake: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._peers = peers
        self._settings = settings
        self._wake = wake

    async def newest(self) -> Version | None:
        """What holds now; None: nothing was set ever."""
        async with self._pool.acquire() as conn:
            return await ALERT_RULES.newest(conn)

    async def read(self, offset: int, limit: int) -> tuple[list[Version], int]:
        """Versions, newest first, and how many there are."""
        async with self._pool.acquire() as conn:
            return await ALERT_RULES.read(conn, offset, limit), await ALERT_RULES.count(conn)

    async def check(self, text: bytes, query: Query | None = None) -> Checked:
        """What Alerting says of a text. Raises Rejected where it can't be set, Transient where that
        is not known.
        """
        within_s = self._settings.config_check_s
        try:
            answer = await self._peers.ask_alerting_about(CHECK, text, within_s, query)
            checked = Checked.model_validate(answer)
        except (Transient, ValidationError) as error:
            message = "Alerting can't check these rules, so nothing was changed."
            raise Transient(f"{message} Try again when it answers.") from error
        if checked.content is None:
            raise _invalid([each.problem() for each in checked.errors])
        return checked

    async def set(self, text: bytes, who: Who) -> tuple[Version, Checked]:
        """Set what a text says. Raises Rejected, Transient."""
        checked = await self.check(text)
        change = Change(checked.content, who.caller.username, who.comment)
        return await self._made(change, who), checked

    async def roll_back(self, number: int, who: Who) -> tuple[Version, Checked]:
        """Set again what a version has. Raises Rejected, Transient."""
        async with self._pool.acquire() as conn:
            found = await ALERT_RULES.find(conn, number)
        if found is None:
            raise Rejected("NoConfigError", f"There is no version {number} of the rules.")
        checked = Checked(content=None, errors=[])
        if found.change.content is not None:
            content = json.dumps(found.change.content).encode()
            checked = await self.check(content, {"trial": "no"})  # it has held before
        change = Change(found.change.content, who.caller.username, who.comment, number)
        return await self._made(change, who), checked

    async def _made(self, change: Change, who: Who) -> Version:
        async with transaction(self._pool) as conn:
            await accounts.check_rights(conn, who.caller)
            newest = await ALERT_RULES.newest(conn)
            number = 0 if newest is None else newest.number
            version = None
            if who.after in (None, number):
                version = await ALERT_RULES.add(conn, change, number)
            if version is None:
                message = f"Version {number} holds now: look at it, and name it if yours follows."
                raise Rejected("ConflictConfigError", message)
            await ALERT_RULES.forget_old(conn, self._settings.config_versions)
            back = change.rolled_back_to is not None
            action = "alert-rules.rollback" if back else "alert-rules.set"
            detail: dict[str, Any] = {"version": version.number, "comment": change.comment}
            entry = audit.Entry(
                who.caller.username, action, ALERT_RULES_SETTING, who.address, detail
            )
            await audit.record(conn, [entry])
        self._wake()
        return version


def _invalid(problems: list[Problem]) -> Rejected:
    first = problems[0] if problems else Problem("", "can't be used")
    line = f"Line {first.line}: " if first.line else ""
    count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
    path = f"`{first.path}` " if first.path else ""
    message = f"The rules have {count}. {line}{path}{first.message}"
    return Rejected("InvalidConfigError", message, tuple(problems))


def no_such(what: str, name: str, nearest: Sequence[str]) -> str:
    """What to know about a name that nobody knows. Alertmanager may know it all the same."""
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
    return f"no {what} is known by the name {name}.{hint}"
