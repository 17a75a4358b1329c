"""GPUs as the agent sees them, over a driver that answers, fails, loses a GPU or hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_agent.devices import NvmlDevices, SimulatedDevices, capacity, open_devices

MEBIBYTE = 1024 * 1024


class DriverError(Exception):
    """What a driver call raises."""


class Driver:
    """Plays NVIDIA's management library with two GPUs."""

    NVMLError = DriverError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.count = 2
        self.ecc_errors = 0
        self.xids: list[tuple[int, int]] = []
        self.before_answer: Callable[[], object] = lambda: None

    def nvmlDeviceGetCount(self) -> int:
        self.before_answer()
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=143771 * MEBIBYTE)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return self.ecc_errors if handle == 1 else 0

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        raise DriverError("Not Supported")

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: object) -> None:
        return None

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise DriverError("Timeout")
        device, number = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=number)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_gpus_are_listed_with_what_the_driver_tells(driver: Driver) -> None:
    gpus = NvmlDevices(driver, 5.0).look()
    assert [(g.index, g.uuid, g.model, g.memory_mb, g.is_healthy, g.simulated) for g in gpus] == [
        (0, "GPU-0", "NVIDIA H200", 143771, True, False),
        (1, "GPU-1", "NVIDIA H200", 143771, True, False),
    ]


def test_a_gpu_with_memory_errors_is_unhealthy_and_says_why(driver: Driver) -> None:
    driver.ecc_errors = 3
    good, bad = NvmlDevices(driver, 5.0).look()
    assert good.is_healthy
    assert (bad.is_healthy, "3 memory errors" in str(bad.problem)) == (False, True)


def test_an_xid_of_the_hardware_counts_and_one_of_a_program_does_not(driver: Driver) -> None:
    devices = NvmlDevices(driver, 5.0)
    driver.xids = [(0, 31), (1, 79)]
    first, second = devices.look()
    assert first.is_healthy
    assert "Xid 79" in str(second.problem)


def test_a_gpu_that_is_gone_stays_listed_as_unhealthy(driver: Driver) -> None:
    devices = NvmlDevices(driver, 5.0)
    devices.look()
    driver.count = 1
    assert [gpu.is_healthy for gpu in devices.look()] == [True, False]


def test_a_driver_that_hangs_makes_its_gpus_unhealthy_and_is_asked_once_at_a_time(
    driver: Driver,
) -> None:
    devices = NvmlDevices(driver, 5.0)
    devices.look()
    release, called, calls = threading.Event(), threading.Event(), []

    def hang() -> None:
        calls.append(1)
        called.set()
        release.wait(20)

    driver.before_answer = hang
    hanging = NvmlDevices(driver, 0.05)
    hanging._known = devices._known
    for _ in range(3):
        assert [gpu.is_healthy for gpu in hanging.look()] == [False, False]
    assert called.wait(20)
    assert len(calls) == 1
    driver.before_answer = lambda: None
    release.set()
    hanging._timeout_s = 20
    assert [gpu.is_healthy for gpu in hanging.look()] == [True, True]


def test_a_driver_that_fails_makes_its_gpus_unhealthy(driver: Driver) -> None:
    devices = NvmlDevices(driver, 5.0)
    devices.look()

    def fail() -> None:
        raise DriverError("Driver/library version mismatch")

    driver.before_answer = fail
    assert all("version mismatch" in str(gpu.problem) for gpu in devices.look())


def test_pretended_gpus_say_that_they_are(driver: Driver) -> None:
    devices = open_devices("n1", 3, 1.0)
    assert isinstance(devices, SimulatedDevices)
    assert [(gpu.index, gpu.simulated) for gpu in devices.look()] == [
        (0, True), (1, True), (2, True),
    ]  # fmt: skip


def test_the_machine_has_something_to_offer() -> None:
    offered = capacity()
    assert offered.cpu >= 1
    assert offered.memory_mb >= 128
