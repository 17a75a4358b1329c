"""Pictures of dashboards show what Prometheus answered."""

from xml.etree import ElementTree

from documents.monitoring.plots import Series, plot
from documents.monitoring.spec import Dashboard, Panel, Row, Shape

NAN = float("nan")


def panel(title: str, shape: Shape, unit: str = "none", legend: str = "") -> Panel:
    return Panel(title, unit, "up", "It tells.", "Do it.", legend, shape)


def test_each_panel_shows_its_answer() -> None:
    panels = (
        panel("Free", "value", "percentunit"),
        panel("By node", "table", "Bps", "node {{node}}"),
        panel("GPUs & nodes", "stack", "s", "{{node}}"),
        panel("Nothing", "lines"),
    )
    board = Dashboard("Cluster", "c", "All.", (Row("r", panels),))
    points = [(0.0, 1.0), (1.0, NAN), (2.0, 3.0)]
    two = [Series({"node": "n1"}, points), Series({"node": "a" * 40}, points)]
    answers = [[Series({}, [(0.0, 0.25)])], [Series({"node": "n1"}, [(0.0, 2.5e9)])], two, []]
    root = ElementTree.fromstring(plot(board, answers))  # noqa: S314 - made here
    texts = [it.text for it in root.iter() if it.tag.endswith("text")]
    for text in ("Cluster", "25 %", "node n1", "2.5 GB/s", "GPUs & nodes", "6 s", "Nothing"):
        assert text in texts
    assert f"{'a' * 23}…" in texts
    lines = [it.attrib["points"].split() for it in root.iter() if it.tag.endswith("polyline")]
    heights = [[float(place.split(",")[1]) for place in line] for line in lines]
    assert len(heights) == 2
    assert heights[1][-1] == min(min(line) for line in heights), "the second is on the first"
    assert heights[0] == sorted(heights[0], reverse=True)
