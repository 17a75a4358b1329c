"""A comparison as plain data, and as text that fits a terminal of 80 columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap

from scheduler.domain.simulation.comparison import Comparison, Row, Twice, sum_of
from scheduler.domain.simulation.figures import (
    WIDTH,
    Data,
    length,
    number,
    percent,
    quantile,
    rounded,
    table,
)
from scheduler.domain.simulation.side_by_side import NEAR_S, SideBySide

NOTHING = "Nothing changes."

Columns = tuple[Sequence[str], Callable[[Row], Sequence[object]]]


def comparison_data(comparison: Comparison) -> Data:
    """The whole of it. Times are seconds."""
    pair = comparison.pair
    users, others = comparison.users_listed()
    tallies = pair.before.simulation.tally, pair.after.simulation.tally
    return {
        "text": headlines(comparison),
        "from": rounded(tallies[0].begins_at or 0.0),
        "to": _twice(Twice(*(tally.now for tally in tallies))),
        "gpusUsed": {
            name: None if share is None else rounded(share)
            for name, share in zip(("before", "after"), pair.gpus_used, strict=True)
        },
        "ignoredEvents": pair.ignored,
        "recorded": _recorded(pair),
        "all": _row(comparison.all),
        "virtualClusters": [
            {"virtualCluster": name, "text": sentence(name, row)} | _row(row)
            for name, row in comparison.virtual_clusters.items()
        ],
        "groups": [
            {"virtualCluster": name, "class": kind} | _row(row)
            for (name, kind), row in sorted(comparison.groups.items())
        ],
        "users": [{"user": user} | _row(row) for user, row in users],
        "otherUsers": {"users": len(others)} | _row(sum_of(others)),
    }


def _recorded(pair: SideBySide) -> Data | None:
    """How long gangs run, and how close the simulation is to the record; None: not a recording."""
    found = pair.as_recorded
    if found is None:
        return None
    recording = found.recording
    unknown = recording.unended + recording.never_ran
    return {
        "asRecorded": len(recording.histories) - unknown,
        "unended": recording.unended,
        "neverRan": recording.never_ran,
        "started": found.started,
        "startedAsRecorded": found.near,
    }


def _row(row: Row) -> Data:
    means_s = row.mean_waits_s
    return {
        "gangs": row.gangs,
        "later": _moved(row.later_s),
        "earlier": _moved(row.earlier_s),
        "notStarted": row.stopped,
        "newlyStarted": row.started,
        "meanWaitSeconds": {"before": None, "after": None} if means_s is None else _twice(means_s),
        "otherWaits": row.other_waits,
        "refused": _twice(row.refused),
        "preempted": _twice(row.preempted),
        "lostGpuSeconds": _twice(row.lost_gpu_s),
        "shorterRuns": {"gangs": len(row.shorter_s), "meanSeconds": _mean(row.shorter_s)},
    }


def _moved(times_s: Sequence[float]) -> Data:
    return {
        "gangs": len(times_s),
        "meanSeconds": _mean(times_s),
        "medianSeconds": quantile(sorted(times_s), 0.50),
    }


def _twice(each: Twice) -> Data:
    return {"before": rounded(each.before), "after": rounded(each.after)}


def _mean(times_s: Sequence[float]) -> float | int | None:
    return rounded(sum(times_s) / len(times_s)) if times_s else None


# Sentences.


def headlines(comparison: Comparison) -> list[str]:
    """A sentence for each changed virtual cluster, and one for the others."""
    rows = comparison.virtual_clusters
    same = [name for name, row in rows.items() if row.is_same]
    if len(same) == len(rows):
        return [NOTHING]
    sentences = [sentence(name, row) for name, row in rows.items() if not row.is_same]
    if len(same) == 1:
        sentences.append(sentence(same[0], rows[same[0]]))
    elif same:
        sentences.append(f"Nothing changes for {len(same)} other virtual clusters.")
    return sentences


def sentence(name: str, row: Row) -> str:
    """Like: This delays 14 gangs of speech by 40m00s on average (median 35m00s)."""
    if row.is_same:
        return f"Nothing changes for {name}."
    clauses: list[str] = []

    def add_sentence(verb: str, count: float, rest: str) -> None:
        of = f" of {name}" if not clauses else ""
        clauses.append(f"{verb} {count:.9g} gang{'' if count == 1 else 's'}{of}{rest}")

    if row.later_s:
        median = f" (median {length(quantile(sorted(row.later_s), 0.5))})"
        add_sentence("delays", len(row.later_s), _by(row.later_s) + median * (len(row.later_s) > 1))
    if row.earlier_s:
        add_sentence("starts", len(row.earlier_s), f" earlier{_by(row.earlier_s)}")
    if row.stopped:
        add_sentence("no longer starts", row.stopped, "")
    if row.started:
        add_sentence("starts", row.started, " that did not start")
    if not row.refused.is_same:
        add_sentence("refuses", row.refused.after, f" instead of {row.refused.before:.9g}")
    if not row.preempted.is_same:
        add_sentence("preempts", row.preempted.after, f" instead of {row.preempted.before:.9g}")
    if not clauses and row.other_waits:
        add_sentence("lets", row.other_waits, " wait otherwise after a preemption")
    if not clauses:
        lost = row.lost_gpu_s
        instead = f"instead of {number(lost.before)}"
        clauses.append(f"loses {number(lost.after)} GPU-seconds of {name} {instead}")
    *first, last = clauses
    return f"This {', '.join(first)}{' and ' if first else ''}{last}."


def _by(times_s: Sequence[float]) -> str:
    return f" by {length(_mean(times_s))}{' on average' if len(times_s) > 1 else ''}"


# Tables.


def comparison_text(comparison: Comparison) -> str:
    """For people; no line is wider than 80 columns."""
    total = comparison.all
    lines = wrapped(headlines(comparison))
    lines += ["", *_totals(comparison, total)]
    if not total.is_same:
        lines += _tables(("VIRTUAL CLUSTER", "CLASS"), sorted(comparison.groups.items()))
        listed, others = comparison.users_listed()
        rest = [((f"{len(others)} more",), sum_of(others))] if others else []
        lines += _tables(("USER",), [*(((user,), row) for user, row in listed), *rest])
    return "\n".join(lines) + "\n"


def wrapped(sentences: Iterable[str]) -> list[str]:
    """Sentences as lines of such a text."""
    parts = (
        wrap(each, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for each in sentences
    )
    return [line for lines in parts for line in lines]


def _totals(comparison: Comparison, row: Row) -> Iterator[str]:
    means_s, lost = row.mean_waits_s, row.lost_gpu_s
    shares = [percent(each) for each in comparison.pair.gpus_used]
    yield f"Gangs          {row.gangs}"
    yield (
        f"Start          {len(row.later_s)} later, {len(row.earlier_s)} earlier,"
        f" {row.stopped} no more, {row.started} newly"
    )
    if means_s is not None:
        yield f"Wait mean      {length(means_s.before)}, with the change {length(means_s.after)}"
    yield f"GPUs used      {shares[0]}, with the change {shares[1]}"
    yield f"Preemptions    {row.preempted.before:.9g}, with the change {row.preempted.after:.9g}"
    after = number(lost.after)
    yield f"Lost by them   {number(lost.before)} GPU-seconds, with the change {after}"
    if row.shorter_s:
        yield f"Shorter runs   {len(row.shorter_s)},{_by(row.shorter_s)}: events end them"
    yield from _recorded_totals(comparison.pair)
    if comparison.pair.ignored:
        yield f"Left out       {comparison.pair.ignored} events that can't be with the change"


def _recorded_totals(pair: SideBySide) -> Iterator[str]:
    found = pair.as_recorded
    if found is None:
        return
    unended, never_ran = found.recording.unended, found.recording.never_ran
    known = len(found.recording.histories) - unended - never_ran
    yield f"Run times      {known} as recorded; {unended} had not ended, {never_ran} never ran"
    if found.started:
        share, near = percent(found.near / found.started), length(NEAR_S)
        yield f"As recorded    {share} of {found.started} starts (to {near}) without the change"


def _tables(names: Sequence[str], rows: Sequence[tuple[Sequence[str], Row]]) -> Iterator[str]:
    for headings, cells in _TABLES:
        yield ""
        these = [(*name, *cells(row)) for name, row in rows]
        yield from table((*names, *headings), these, len(names))


def _start_cells(row: Row) -> Sequence[object]:
    later = sorted(row.later_s)
    lengths = (length(_mean(later)), length(quantile(later, 0.50)))
    return len(later), *lengths, len(row.earlier_s), length(_mean(row.earlier_s))


def _wait_cells(row: Row) -> Sequence[object]:
    means_s = row.mean_waits_s
    waits = ("-", "-") if means_s is None else (length(means_s.before), length(means_s.after))
    return row.gangs, *waits, row.stopped, row.started


def _cost_cells(row: Row) -> Sequence[object]:
    both = (row.preempted, row.lost_gpu_s)
    return [number(each) for pair in both for each in (pair.before, pair.after)]


_TABLES: Sequence[Columns] = (
    (("LATER", "MEAN", "MEDIAN", "EARLIER", "MEAN"), _start_cells),
    (("GANGS", "WAIT MEAN", "CHANGED", "NO MORE", "NEW"), _wait_cells),
    (("PREEMPTED", "CHANGED", "LOST GPU-S", "CHANGED"), _cost_cells),
)
