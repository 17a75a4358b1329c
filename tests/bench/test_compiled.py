"""The core decides the same however it is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("decided.py")


def decided(nodes: int, arrivals: int, path: str) -> list[str]:
    """Which core it was, and what it made of the stream."""
    command = [sys.executable, str(SCRIPT), str(nodes), str(arrivals)]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout.split()


@pytest.mark.compiled
@pytest.mark.parametrize(("nodes", "arrivals"), [(128, 4_000), (1_024, 2_000)])
def test_the_compiled_core_decides_what_the_plain_one_does(nodes: int, arrivals: int) -> None:
    core, compiled = decided(nodes, arrivals, os.environ["PYTHONPATH"])
    assert core == "compiled"
    assert decided(nodes, arrivals, "") == ["plain", compiled]
