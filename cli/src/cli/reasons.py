"""What the Scheduler says of waiting and running gangs, in words for people. It may say more, or
less, than is known here: what is missing is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

GANGS_SHOWN = 5
AHEAD_SHOWN = 3


def numbers(reason: Mapping[str, Any] | None) -> str:
    """A reason's numbers: ``wanted 8, free 3``."""
    found = (reason or {}).get("numbers") or {}
    return ", ".join(f"{name} {value}" for name, value in found.items() if value is not None)


def told_by_scheduler(said: object) -> Iterator[tuple[str, object]]:
    """What the Scheduler adds to why a job is where it is, as names and values."""
    if not isinstance(said, dict):
        return
    for name, value in said.items():
        if isinstance(value, str | int | float) and value != "" and name not in ("job", "asOf"):
            yield name, value
    gangs = [gang for gang in said.get("gangs") or () if isinstance(gang, dict)]
    for gang in gangs[:GANGS_SHOWN]:
        if len(gangs) > 1:
            yield "gang", gang.get("gang")
        yield from _gang(gang)
    if len(gangs) > GANGS_SHOWN:
        yield "more", f"{len(gangs) - GANGS_SHOWN} gangs are not shown; -o json has all"


def _gang(gang: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    reason = gang.get("reason")
    if isinstance(reason, dict) and gang.get("state") != "placed":
        yield "code", reason.get("code")
        if text := numbers(reason):
            yield "numbers", text
    if gang.get("position") is not None:
        ahead = [str(name) for name in gang.get("ahead") or ()]
        behind = f", behind {', '.join(ahead[:AHEAD_SHOWN])}" if ahead else ""
        more = ", …" if len(ahead) > AHEAD_SHOWN else ""
        yield "place", f"{gang['position']} of {gang.get('waiting', '?')}{behind}{more}"
    downgrade = gang.get("downgrade")
    if isinstance(downgrade, dict):
        yield "runs", f"downgraded since {downgrade.get('since')} {_for_whom(downgrade)}"
    elif gang.get("class"):
        yield "class", gang["class"]
    preemption = gang.get("preemption")
    if isinstance(preemption, dict):
        yield "preempted", _preemption(preemption)


def _for_whom(downgrade: Mapping[str, Any]) -> str:
    gang = downgrade.get("gang")
    return f"for gang {gang}" if gang else "by a change of the configuration"


def _preemption(preemption: Mapping[str, Any]) -> str:
    whom = f"for {preemption['gang']}" if preemption.get("gang") else "for a drain"
    until = f", until {preemption['until']}" if preemption.get("until") else ""
    reason = preemption.get("reason")
    why = f": {reason['text']}" if isinstance(reason, dict) and reason.get("text") else ""
    return f"{whom}{until}{why}"
