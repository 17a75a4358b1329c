"""Writes the UUIDs of the GPUs that this container sees, as an agent here would report them.
`muster deploy check` runs it in short pods, whose termination message is the answer.
"""

import json
import sys
from pathlib import Path

import pynvml

from runtime_agent.devices import NvmlDevices

DRIVER_TIMEOUT_S = 20.0


def main(target: Path) -> None:
    """The command."""
    devices = NvmlDevices(pynvml, DRIVER_TIMEOUT_S, boot="", home=target.parent)
    problem = devices.look().problem
    target.write_text(problem or json.dumps(list(devices.uuids.values())))
    sys.exit(1 if problem else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
