"""The agent's look beside `nvidia-smi`'s own answer, on a machine with a real NVIDIA driver:
`pytest -m gpu tests/runtime_agent`. Elsewhere the run's summary has these tests as skipped.

It needs pytest, pydantic, psutil, structlog and nvidia-ml-py alone, where nothing else can be
installed: `PYTHONPATH=shared/src:services/runtime-agent/src python -m pytest -c /dev/null \
--rootdir . --noconftest -rs tests/runtime_agent/test_devices_gpu.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from runtime_agent.devices import NvmlDevices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path("/proc/driver/nvidia/version").exists(),
        reason="no NVIDIA driver is loaded here, so the look at real GPUs is not tested",
    ),
]

WHOLE = re.compile(r"GPU \d+: (?P<model>.+) \(UUID: (?P<uuid>GPU-[^)]+)\)")
PART = re.compile(r"\s+MIG (?P<profile>[^\s+]+)\S*\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[^)]+)\)")


@pytest.fixture
def devices(tmp_path: Path) -> NvmlDevices:
    return NvmlDevices(pynvml, 30.0, boot="boot", home=tmp_path)


def nvidia_smi(*arguments: str) -> list[str]:
    """The lines of its answer."""
    run = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout.splitlines()


def test_every_device_of_the_driver_is_listed_and_well(devices: NvmlDevices) -> None:
    listed: dict[str, str] = {}
    model = uuid = ""
    for line in nvidia_smi("-L"):
        if whole := WHOLE.match(line):
            model, uuid = whole["model"], whole["uuid"]
            listed[uuid] = model
        elif part := PART.match(line):
            listed.pop(uuid, None)
            listed[part["uuid"]] = f"{model} MIG {part['profile']}"
    look = devices.look()
    assert look.problem is None
    assert listed, "nvidia-smi lists no GPU"
    assert {gpu.uuid: gpu.model for gpu in look.gpus} == listed
    assert all(gpu.is_healthy for gpu in look.gpus), [gpu.problem for gpu in look.gpus]


def test_whole_gpus_have_the_number_and_memory_that_nvidia_smi_shows(devices: NvmlDevices) -> None:
    query = "--query-gpu=index,uuid,memory.total,mig.mode.current"
    rows = [line.split(", ") for line in nvidia_smi(query, "--format=csv,noheader,nounits")]
    whole = {(int(number), uuid, int(mb)) for number, uuid, mb, mig in rows if mig != "Enabled"}
    gpus = devices.look().gpus
    assert {
        (g.index, g.uuid, g.memory_mb) for g in gpus if g.uuid in {w[1] for w in whole}
    } == whole


def test_a_gpus_figures_are_those_that_nvidia_smi_shows(devices: NvmlDevices) -> None:
    query = "--query-gpu=index,memory.free,temperature.gpu,power.draw,clocks.mem,mig.mode.current"
    rows = [line.split(", ") for line in nvidia_smi(query, "--format=csv,noheader,nounits")]
    devices.look()
    began = time.monotonic()
    usage = devices.look().usage
    print(f"a look at {len(usage)} GPUs: {(time.monotonic() - began) * 1000:.1f} ms", usage)
    for number, free, degrees, watts, clock, mig in rows:
        if mig == "Enabled":
            continue
        shown = usage[int(number)]
        assert shown.memory_free is not None
        assert shown.memory_free / 2**20 == pytest.approx(float(free), abs=64)
        assert shown.temperature == pytest.approx(float(degrees), abs=5)
        assert shown.power == pytest.approx(float(watts), rel=0.5)
        assert shown.memory_clock == float(clock)
        assert (shown.uncorrected, shown.energy is None) == (0, False)


def test_a_second_look_and_a_new_agent_find_the_same(devices: NvmlDevices, tmp_path: Path) -> None:
    first = devices.look()
    assert replace(devices.look(), usage={}) == replace(first, usage={})
    again = NvmlDevices(pynvml, 30.0, boot="boot", home=tmp_path, memory=first.memory)
    assert replace(again.look(), usage={}) == replace(first, usage={})


def test_a_process_sees_the_device_that_it_is_given_and_no_other(devices: NvmlDevices) -> None:
    """CUDA_VISIBLE_DEVICES, as pods get it, hides the others from CUDA's own driver library."""
    count = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(-1);"
        "status = cuda.cuInit(0); cuda.cuDeviceGetCount(ctypes.byref(n)); print(status, n.value)"
    )
    devices.look()
    for visible, expected in (("", "100 -1"), *((name, "0 1") for name in devices.names.values())):
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }  # fmt: skip
        seen = subprocess.run(
            ["python3", "-c", count], env=environment, capture_output=True, text=True,
            timeout=120, check=True,
        ).stdout.strip()  # fmt: skip
        assert seen == expected, visible
