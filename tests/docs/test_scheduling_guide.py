"""Every example of the guide to scheduling does what the guide says.

An example's line is what happens ("100  ben asks for bert: 2 pods of 4 GPUs, …", "50  node n0 is
drained") or, after ">", a decision. Reservations are left out: nobody is told of them. A first line
"policy: KEY VALUE" changes the page's cluster.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.simulation.run import Simulation

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"
GUIDE = PAGE.read_text().partition("\n## Reference\n")[0]
CLUSTER = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[0])
SECTIONS = re.split(r"^### ", GUIDE, flags=re.MULTILINE)[1:]
EXAMPLES = [
    pytest.param(example, id=f"{section.splitlines()[0]} {number}")
    for section in SECTIONS
    for number, example in enumerate(re.findall(r"^```\n(.*?)```", section, re.DOTALL | re.M))
]
ASKS = re.compile(
    r"(?P<user>\w+) asks for (?P<id>\w+): (?P<pods>\d+) pods? of (?P<gpus>\d+) GPUs(?P<rest>.*)"
)
DRAINED = re.compile(r"node (?P<node>\w+) is drained")
POD_FIELDS = {"min", "cpu"}
FIELDS = {
    "in": "virtualCluster",
    "priority": "priority",
    "runs": "runSeconds",
    "expected": "expectedSeconds",
    "limit": "limitSeconds",
    "checkpoints": "checkpointSeconds",
}


def event(at: int, text: str) -> dict[str, Any]:
    """One line of what happens, as the simulator reads it."""
    if drained := DRAINED.fullmatch(text):
        return {"at": at, "event": "node-drained", "node": drained["node"]}
    asked = ASKS.fullmatch(text)
    assert asked, text
    pods: dict[str, Any] = {"name": "w", "count": int(asked["pods"]), "gpus": int(asked["gpus"])}
    gang: dict[str, Any] = {"id": asked["id"], "user": asked["user"], "virtualCluster": "vision"}
    for word, value in re.findall(r"(\w+)(?: (-?\w+))?", asked["rest"].replace(" in ", ", in ")):
        if word == "borrow":
            gang["borrow"] = True
        elif word in POD_FIELDS:
            pods[word] = int(value)
        else:
            gang[FIELDS[word]] = value if word == "in" else int(value)
    return {"at": at, "event": "gang-requested", "gang": {"priority": 0} | gang | {"pods": [pods]}}


def told(line: str) -> str | None:
    """A decision, as the guide writes it."""
    made = json.loads(line)
    kind, after = made["decision"], ""
    match kind:
        case "reserved":
            return None
        case "deferred":
            kind, after = "waits:", f" {made['reason']['code']}"
        case "placed":
            after = " on " + " ".join(sorted({pod["node"] for pod in made["pods"]}))
        case _ if made.get("for"):
            after = f" for {made['for']}"
    return f"{made['at']:g} > {made['gang']} {kind}{after}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_happens_as_it_is_written(example: str) -> None:
    lines = example.splitlines()
    cluster = dict(CLUSTER)
    if lines[0].startswith("policy: "):
        key, value = lines.pop(0).split()[1:]
        cluster["policy"] = CLUSTER["policy"] | {key: yaml.safe_load(value)}
    happened, expected = [], []
    for line in lines:
        at, _, text = line.strip().partition("  ")
        if text.startswith("> "):
            expected.append(f"{at} {text}")
        else:
            happened.append(json.dumps(event(int(at), text)))
    config = read_cluster(yaml.safe_dump(cluster).encode()).config
    simulation = Simulation(config, lambda finding: pytest.fail(str(finding)))
    decided = [
        told(decision_line(at, decision))
        for at, decision in simulation.run(read_events(line.encode() for line in happened))
    ]
    assert [each for each in decided if each is not None] == expected


def test_the_guide_has_an_example_for_each_of_its_rules() -> None:
    without = [each.splitlines()[0] for each in SECTIONS if "\n```\n" not in each]
    assert without == ["The knobs"]
