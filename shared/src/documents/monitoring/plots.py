"""Pictures of dashboards: each panel's answer as Prometheus gave it, one SVG a dashboard."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from documents.monitoring.spec import Dashboard, Panel

COLUMNS, WIDTH, HEIGHT, GAP, HEAD = 3, 300, 150, 12, 26
LEFT, TOP, BOTTOM = 52, 34, 30
"""Inside a panel: room for the scale, the title and the legend."""
NAMES, NAME = 4, 24
"""The most names in a legend, and the longest one."""
COLOURS = ("#1f6fb4", "#d9730d", "#2f8f46", "#c23b3b", "#7a55b0", "#80604d", "#c9579f", "#6b6b6b")
UNITS = {"percent": "%", "Bps": "B/s", "bytes": "B", "s": "s", "watt": "W", "celsius": "°C"}
UNITS |= {"ops": "/s", "cps": "/s", "rotmhz": "MHz"}
"""Grafana's names of units, as a scale shows them."""
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
LABEL = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and its times (Unix seconds) with their values."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def plot(board: Dashboard, answers: Sequence[Sequence[Series]]) -> str:
    """The picture. ``answers``: those of its panels, in their order."""
    lines = math.ceil(len(board.panels) / COLUMNS)
    width, height = COLUMNS * (WIDTH + GAP) + GAP, HEAD + lines * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>',
        _text(GAP, 21, board.title, font_size=15),
    ]
    for number, (panel, answer) in enumerate(zip(board.panels, answers, strict=True)):
        x = GAP + number % COLUMNS * (WIDTH + GAP)
        y = HEAD + GAP + number // COLUMNS * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x} {y})">')
        parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff" stroke="#d5d8dd"/>')
        parts.append(_text(8, 18, panel.title, font_size=12))
        parts += _panel(panel, answer)
        parts.append("</g>")
    return "\n".join((*parts, "</svg>", ""))


def shown(value: float, unit: str) -> str:
    """A value with its unit: ``1.5 GB/s``."""
    if unit == "percentunit":
        value, unit = value * 100, "percent"
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{UNITS.get(unit, '')}".rstrip()
    return f"{value:.3g} {UNITS.get(unit, '')}".rstrip()


def _panel(panel: Panel, answer: Sequence[Series]) -> Iterator[str]:
    series = [Series(it.labels, [p for p in it.points if math.isfinite(p[1])]) for it in answer]
    series = [it for it in series if it.points]
    match panel.shape:
        case "value":
            value = sum(it.points[-1][1] for it in series[:1])
            yield _text(WIDTH / 2, 95, shown(value, panel.unit), font_size=34, text_anchor="middle")
        case "table":
            for number, it in enumerate(series[:NAMES]):
                y = 44 + 20 * number
                yield _text(8, y, _name(panel, it))
                last = shown(it.points[-1][1], panel.unit)
                yield _text(WIDTH - 8, y, last, text_anchor="end")
        case "lines" | "stack":
            yield from _lines(panel, _stacked(series) if panel.shape == "stack" else series)


def _stacked(series: Sequence[Series]) -> list[Series]:
    """Each series on top of those before it."""
    below: dict[float, float] = {}
    found = []
    for it in series:
        points = []
        for at, value in it.points:
            below[at] = below.get(at, 0.0) + value
            points.append((at, below[at]))
        found.append(Series(it.labels, points))
    return found


def _lines(panel: Panel, series: Sequence[Series]) -> Iterator[str]:
    series = series[: len(COLOURS)]
    top = _round_top(max((value for it in series for _, value in it.points), default=0.0))
    times = [at for it in series for at, _ in it.points] or [0.0]
    first, last = min(times), max(times)
    right, bottom = WIDTH - 10, HEIGHT - BOTTOM
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - TOP)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e3e5e8"/>'
        yield _text(LEFT - 5, y + 4, shown(share * top, panel.unit), font_size=9, text_anchor="end")
    x = float(LEFT)
    for number, it in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{LEFT + (at - first) / ((last - first) or 1.0) * (right - LEFT):.1f},"
            f"{bottom - value / top * (bottom - TOP):.1f}"
            for at, value in it.points
        )
        yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        name = _name(panel, it)
        if number < NAMES and x + 6 * len(name) < right:
            yield _text(x, HEIGHT - 10, name, font_size=9, fill=colour)
            x += 6 * len(name) + 12


def _round_top(value: float) -> float:
    """The end of a scale that has room for a value."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 5, 6, 8, 10) if step * size >= value * (1 - 1e-9))


def _name(panel: Panel, series: Series) -> str:
    text = LABEL.sub(lambda found: series.labels.get(found[1], ""), panel.legend)
    text = text.strip() or ", ".join(series.labels.values())
    return text if len(text) <= NAME else f"{text[: NAME - 1]}…"


def _text(x: float, y: float, text: str, **style: object) -> str:
    attributes: dict[str, object] = {"font-size": 11, "text-anchor": "start", "fill": "#24292f"}
    attributes |= {name.replace("_", "-"): value for name, value in style.items()}
    styled = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}" {styled}>{escape(text)}</text>'
