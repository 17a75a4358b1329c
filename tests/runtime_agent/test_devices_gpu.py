"""The agent on a machine with a real NVIDIA driver: `pytest -m gpu tests/runtime_agent`.

It needs pytest, pydantic, psutil and nvidia-ml-py alone, where nothing else can be installed:
`PYTHONPATH=shared/src:services/runtime-agent/src python -m pytest -c /dev/null --rootdir . \
--noconftest tests/runtime_agent/test_devices_gpu.py`.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from runtime_agent.devices import NvmlDevices, open_devices

pytestmark = pytest.mark.gpu


@pytest.fixture
def devices() -> NvmlDevices:
    found = open_devices("node", None, 30.0)
    if not isinstance(found, NvmlDevices):
        pytest.skip("this machine has no NVIDIA driver")
    return found


def test_every_gpu_of_the_driver_is_listed_and_well(devices: NvmlDevices) -> None:
    gpus = devices.look()
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip().splitlines()  # fmt: skip
    assert [f"{gpu.index}, {gpu.uuid}, {gpu.model}" for gpu in gpus] == listed
    assert all(gpu.is_healthy for gpu in gpus), [gpu.problem for gpu in gpus]
    assert all(gpu.memory_mb > 1024 and not gpu.simulated for gpu in gpus)


def test_a_second_look_says_the_same(devices: NvmlDevices) -> None:
    assert devices.look() == devices.look()


def test_a_process_that_may_see_no_gpu_sees_none(devices: NvmlDevices) -> None:
    """CUDA_VISIBLE_DEVICES, as pods get it, hides GPUs from CUDA's own driver library."""
    count = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(-1);"
        "status = cuda.cuInit(0); cuda.cuDeviceGetCount(ctypes.byref(n)); print(status, n.value)"
    )
    for visible, expected in (("", "100 -1"), ("0", "0 1")):
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }  # fmt: skip
        seen = subprocess.run(
            ["python3", "-c", count], env=environment, capture_output=True, text=True,
            timeout=120, check=True,
        ).stdout.strip()  # fmt: skip
        assert seen == expected
