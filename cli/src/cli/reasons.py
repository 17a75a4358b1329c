"""The Scheduler's answers on waiting and running gangs, as text for people. They may have more or
fewer fields than this module knows: missing ones are left out.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.counted import counted
from muster.ids import parse_pod

from cli.jobs import grown
from cli.output import length, milliseconds

GANGS_SHOWN = 5
AHEAD_SHOWN = 3


def numbers(reason: Mapping[str, Any] | None) -> str:
    """A reason's numbers: ``wanted 8, free 3``; its text names the gang."""
    found = (reason or {}).get("numbers") or {}
    known = ((name, value) for name, value in found.items() if value is not None and name != "for")
    return ", ".join(f"{name} {value}" for name, value in known)


def coded(reason: object) -> Iterator[tuple[str, object]]:
    """A reason's code and numbers, as names and values."""
    if isinstance(reason, dict) and reason.get("code"):
        yield "code", reason["code"]
        if text := numbers(reason):
            yield "numbers", text


def task_of(gang: object) -> str | None:
    """The task that is a gang of its own, as ``worker 4``; None: the gang is the whole job's."""
    try:
        pod = parse_pod(str(gang))
    except ValueError:
        return None
    return f"{pod.role} {pod.index}"


def gang_of(gang: Mapping[str, Any]) -> str:
    """The job, with its task where that is a gang of its own."""
    job, task = f"{gang.get('user')}~{gang.get('name')}", task_of(gang.get("gang"))
    return f"{job} {task}" if task else job


def more_wait(count: int) -> str:
    """``2 more wait``."""
    return f"{count} more {'waits' if count == 1 else 'wait'}"


def scheduler_details(scheduler: object, headline: object) -> Iterator[tuple[str, object]]:
    """The Scheduler's details on a job, as names and values; waiting gangs come first.
    ``headline``: the reason that is shown already.
    """
    if not isinstance(scheduler, dict):
        return
    for name, value in scheduler.items():
        if isinstance(value, str | int | float) and value != "" and name not in ("job", "asOf"):
            yield name, value
    gangs = [gang for gang in scheduler.get("gangs") or () if isinstance(gang, dict)]
    gangs.sort(key=lambda gang: gang.get("state") == "placed")
    for gang in gangs[:GANGS_SHOWN]:
        if task := task_of(gang.get("gang")):
            yield "task", task
        elif len(gangs) > 1:
            yield "gang", gang.get("gang")
        yield from _gang(gang, headline)
    if len(gangs) > GANGS_SHOWN:
        yield "more", f"{counted(len(gangs) - GANGS_SHOWN, 'gang')} not shown; -o json has all"


def _gang(gang: Mapping[str, Any], headline: object) -> Iterator[tuple[str, object]]:
    reason = gang.get("reason")
    if isinstance(reason, dict) and gang.get("state") != "placed":
        if (text := reason.get("text")) and text != headline:
            yield "why", text
        yield from coded(reason)
    if gang.get("position") is not None:
        yield "place", f"{gang['position']} of {gang.get('waiting', '?')}"
    yield from _prospects(gang)
    downgrade = gang.get("downgrade")
    if isinstance(downgrade, dict):
        yield "runs", f"downgraded since {downgrade.get('since')} {_for_gang(downgrade)}"
    elif held := gang_class(gang.get("class"), gang.get("lender")):
        yield "class", held
    yield from _growth(gang)
    preemption = gang.get("preemption")
    if isinstance(preemption, dict):
        yield "preempted", _preemption(preemption)


def gang_class(held: str | None, lender: str | None) -> str | None:
    """How a gang holds its GPUs, and the virtual cluster that lends them."""
    return f"{held}, borrowed from {lender}" if held and lender else held


def _growth(gang: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """A running gang: how many of its pods have a place, and what of them is borrowed."""
    pods = gang.get("pods") or ()
    waiting = sum(pod.get("state") == "waiting" for pod in pods)
    if gang.get("class") and waiting:
        yield "size", grown(len(pods), waiting, "pod")
    borrowed = gang.get("borrowed") or {}
    if borrowed and not gang.get("lender"):
        parts = (f"{counted(gpus, 'GPU')} from {name}" for name, gpus in borrowed.items())
        yield "borrowed", f"{', '.join(parts)}, by what it has grown by"


def _prospects(gang: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The gangs ahead of it, its expected start, and changes with which it could start now."""
    place = gang.get("inVirtualCluster") or {}
    if before := (place.get("position") or 1) - 1:
        named = _gangs(place.get("ahead") or (), AHEAD_SHOWN, before)
        gpus = counted(place.get("gpusAhead") or "no", "GPU")
        are = "is" if before == 1 else "are"
        yield "ahead", f"{counted(before, 'gang')} with {gpus} {are} ahead of it: {named}"
    if at := gang.get("expectedStart"):  # else cells may be reserved for one behind it
        yield "expected", f"to start {until(at)}, on reserved cells"
    otherwise = gang.get("counterfactual") or {}
    if isinstance(ends := otherwise.get("ends"), dict):
        yield "starts", _when_ended(ends, is_first=not before and bool(at))
    elif _is_hopeless(gang, otherwise):
        yield "starts", f"not by waiting: {_hopeless(gang)}"
    if isinstance(fewer := otherwise.get("fewer"), dict):
        role = f" of {fewer['role']}" if fewer.get("role") else ""
        is_elastic, count = fewer.get("isElastic"), fewer.get("pods")
        pods = f"minInstances: {count}" if is_elastic else counted(count, "pod")
        yield "or now", f"would start now with {pods}{role} instead of {fewer.get('insteadOf')}"
    if otherwise.get("opportunistic"):
        yield "or now", "would start now as opportunistic (nothing is guaranteed then)"
    if lender := (otherwise.get("borrowing") or {}).get("lender"):
        terms = "borrow: true; it is preempted on demand"
        yield "or now", f"would start now on what {lender} lends ({terms})"
    if nodes := otherwise.get("nodes"):
        are = "were" if len(nodes) > 1 else "was"
        more = f"{_more(nodes)}{', if no other job takes them' if before else ''}"
        yield "or", f"could start if {', '.join(nodes[:AHEAD_SHOWN])} {are} usable{more}"
    if left_out := otherwise.get("leftOut"):
        lenders = "; no lender's jobs are tried" if "ends" in left_out else ""
        yield (
            "left out",
            f"{', '.join(left_out)}: not found within the bounds of an answer{lenders}",
        )


def _is_hopeless(gang: Mapping[str, Any], otherwise: Mapping[str, Any]) -> bool:
    """All ends were tried, and none helps."""
    is_tried = "ends" in otherwise and "ends" not in (otherwise.get("leftOut") or ())
    return is_tried and (gang.get("reason") or {}).get("code") in ("quota", "shape", "resource")


def _hopeless(gang: Mapping[str, Any]) -> str:
    cluster = gang.get("virtualCluster") or "its virtual cluster"
    fix = "Ask for fewer or smaller tasks, or see `muster nodes`."
    return f"as the nodes are, it would not fit if all gangs of {cluster} had ended. {fix}"


def _when_ended(ends: Mapping[str, Any], *, is_first: bool) -> str:
    count = ends.get("count") or 0
    if not count:
        return "when those that are ahead of it, or have reserved cells, have started"
    named = _gangs(ends.get("gangs") or (), AHEAD_SHOWN, count)
    verb = "ends" if count == 1 else "end"
    if ends.get("gpus"):
        verb = "ends or releases its GPUs" if count == 1 else "end or release their GPUs"
    at = ends.get("at")
    when = f", expected {until(at)}" if at else ""
    return f"when {named} {verb}{when}{'' if is_first else ', if no other job takes them'}"


def _gangs(named: Sequence[Mapping[str, Any]], most: int, count: int) -> str:
    """``train-bert (16 GPUs), other (8 GPUs) and 2 more``."""
    shown = [f"{g.get('name')} ({counted(g.get('gpus') or 'no', 'GPU')})" for g in named[:most]]
    left = count - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def _more(names: Sequence[str]) -> str:
    left = len(names) - AHEAD_SHOWN
    return f" (and {left} more)" if left > 0 else ""


def until(at: str) -> str:
    """How long it is until then: ``in 2h10m``."""
    now_ms, at_ms = int(time.time() * 1000), milliseconds(at)
    return "now" if at_ms <= now_ms else f"in {length(now_ms, at_ms)}"


def _for_gang(downgrade: Mapping[str, Any]) -> str:
    gang = downgrade.get("gang")
    return f"for gang {gang}" if gang else "by a change of the configuration"


def _preemption(preemption: Mapping[str, Any]) -> str:
    beneficiary = f"for {preemption['gang']}" if preemption.get("gang") else "for a drain"
    until = f", until {preemption['until']}" if preemption.get("until") else ""
    reason = preemption.get("reason")
    why = f": {reason['text']}" if isinstance(reason, dict) and reason.get("text") else ""
    return f"{beneficiary}{until}{why}"
