"""GPUs as the agent sees them, over a driver that answers, fails, hangs, is late or loses one."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from muster.contracts.nodes import Gpu
from nvml_double import H100, H100_MB, Card, Driver, Part
from nvml_recording import Recording
from runtime_agent.devices import FORGET_XIDS, NvmlDevices, SimulatedDevices, capacity
from runtime_agent.domain.gpus import ForeignProcess, staying, with_foreign
from runtime_agent.reporter import foreign_processes
from runtime_agent.supervisor import proc

BOOT = "boot-1"
TWO = ("GPU-a", "GPU-b")


class Node:
    """A machine with a driver; its agent can be started anew, the machine too."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.driver = Driver(*TWO)
        self.memory: str | None = None
        self.release = threading.Event()
        self.start()

    def start(self, boot: str = BOOT, timeout_s: float = 20.0) -> None:
        self.driver.is_open = False
        self.devices = NvmlDevices(
            self.driver, timeout_s, boot=boot, home=self.home, memory=self.memory
        )

    def look(self) -> tuple[Gpu, ...]:
        look = self.devices.look()
        self.memory, self.problem, self.xids = look.memory, look.problem, look.xids
        return look.gpus

    def health(self) -> list[str]:
        """One look: what is wrong with each GPU, "" for nothing."""
        return [gpu.problem or "" for gpu in self.look()]

    def hang_in(self, call: str) -> None:
        """The driver hangs in this call until it is released."""

        def before(name: str) -> None:
            if name == call:
                self.release.wait(60)

        self.driver.before = before


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.release.set()


def part(uuid: str, memory_mb: int = 9984, slices: int = 1, used: int | None = None) -> Part:
    return Part(uuid, memory_mb, slices, slices if used is None else used)


def test_gpus_are_listed_with_what_the_driver_tells(node: Node) -> None:
    assert node.look() == (
        Gpu(index=0, uuid="GPU-a", model=H100, memory_mb=H100_MB),
        Gpu(index=1, uuid="GPU-b", model=H100, memory_mb=H100_MB),
    )
    assert node.problem is None
    assert node.devices.names == {0: "0", 1: "1"}


@pytest.mark.parametrize(
    ("ecc_errors", "rows", "words"),
    [
        (0, None, ""),
        (0, (3, 1, 0, 0), ""),
        (3, None, "3 memory errors"),
        (0, (0, 1, 1, 0), "remapping of a memory row is pending"),
        (0, (0, 1, 1, 1), "could not be remapped"),
    ],
)
def test_a_gpu_with_broken_memory_is_unhealthy_with_the_reason(
    node: Node, ecc_errors: int, rows: tuple[int, int, int, int] | None, words: str
) -> None:
    node.driver.cards[1] = Card("GPU-b", ecc_errors=ecc_errors, rows=rows)
    good, bad = node.look()
    assert good.is_healthy
    assert bad.is_healthy is (words == "")
    assert words in (bad.problem or "")


def test_an_xid_of_the_hardware_counts_and_one_of_a_program_does_not(node: Node) -> None:
    node.look()
    node.driver.cards[0].xids, node.driver.cards[1].xids = [31, 94], [13, 79]
    first, second = node.look()
    assert first.is_healthy
    assert "Xid 79" in str(second.problem)
    assert node.xids == ((0, 31), (0, 94), (1, 13), (1, 79))
    assert ("Xid 79" in node.health()[1], node.xids) == (True, ())


def test_an_xid_outlives_the_agent_and_goes_with_its_gpu(node: Node) -> None:
    node.look()
    node.driver.cards[1].xids = [48]
    node.look()
    node.driver.cards.reverse()
    node.start()
    assert [(gpu.uuid, gpu.is_healthy) for gpu in node.look()] == [
        ("GPU-a", True), ("GPU-b", False),
    ]  # fmt: skip


def test_an_xid_is_forgotten_when_the_machine_has_rebooted(node: Node) -> None:
    node.look()
    node.driver.cards[1].xids = [48]
    node.look()
    node.start(boot="boot-2")
    assert node.health() == ["", ""]


def test_an_operator_can_have_xids_forgotten(node: Node) -> None:
    node.look()
    node.driver.cards[1].xids = [48]
    assert node.health()[1]
    node.start()
    (node.home / FORGET_XIDS).touch()
    assert node.health() == ["", ""]
    node.driver.cards[1].xids = [48]
    assert node.health()[1], "a new one counts"


def test_an_xid_counts_though_the_driver_then_fails(node: Node) -> None:
    node.look()
    node.driver.cards[1].xids = [119]

    def fail(name: str) -> None:
        if name == "nvmlDeviceGetCount":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    node.driver.before = fail
    assert all("driver answers with an error" in problem for problem in node.health())
    node.driver.before = lambda name: None
    assert ["Xid 119" in problem for problem in node.health()] == [False, True]


def test_a_gpu_that_is_gone_stays_listed_as_unhealthy_until_the_reboot(node: Node) -> None:
    node.look()
    del node.driver.cards[0]
    for _ in range(2):
        assert [(gpu.uuid, gpu.is_healthy) for gpu in node.look()] == [
            ("GPU-a", False), ("GPU-b", True),
        ]  # fmt: skip
        assert node.devices.names[1] == "GPU-b", "CUDA now calls it 0"
        node.start()
    node.start(boot="boot-2")
    assert [(gpu.index, gpu.uuid) for gpu in node.look()] == [(1, "GPU-b")]


def test_a_lost_gpu_is_unhealthy_and_the_library_is_opened_anew_for_it(node: Node) -> None:
    node.look()
    node.driver.cards[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
    node.driver.cards[0].xids = [79]
    node.look()
    node.driver.cards[1].xids = [95]
    assert ["Xid" in problem for problem in node.health()] == [True, True]
    assert node.driver.calls.count("nvmlInit") == 2
    node.driver.cards[0].error = None
    (node.home / FORGET_XIDS).touch()
    assert node.health() == ["", ""]


def test_a_gpu_that_never_answered_is_reported_all_the_same(node: Node) -> None:
    node.driver.cards[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
    for _ in range(2):
        broken, good = node.look()
        assert (broken.index, broken.model, broken.is_healthy) == (0, "unknown", False)
        assert (good.index, good.uuid, good.is_healthy) == (1, "GPU-b", True)
        node.start()
    node.driver.cards[0].error = None
    assert [(gpu.index, gpu.uuid) for gpu in node.look()] == [(0, "GPU-a"), (1, "GPU-b")]
    assert node.devices.names == {0: "0", 1: "1"}


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_a_driver_that_hangs_leaves_no_gpu_unmentioned(node: Node, call: str) -> None:
    node.look()
    node.hang_in(call)
    node.start(timeout_s=0.05)
    calls = node.driver.calls.count(call)
    for _ in range(3):
        assert all("has not answered for 0.05 s" in problem for problem in node.health())
        assert node.problem is not None
    assert node.driver.calls.count(call) == calls + 1, "one thread waits, no more"
    node.start(timeout_s=0.05)
    assert [gpu.is_healthy for gpu in node.look()] == [False, False]


def test_a_driver_that_hangs_from_the_first_call_on_is_a_problem_of_the_node(node: Node) -> None:
    node.hang_in("nvmlInit")
    node.start(timeout_s=0.05)
    assert node.look() == ()
    assert "has not answered" in str(node.problem)


def test_a_driver_that_answers_at_last_is_believed(node: Node) -> None:
    node.hang_in("nvmlInit")
    node.start(timeout_s=0.05)
    assert node.look() == ()
    node.release.set()
    node.devices._timeout_s = 20
    assert node.health() == ["", ""]


@pytest.mark.parametrize(
    "absent", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_a_driver_that_is_loaded_later_is_noticed_and_so_is_its_removal(
    node: Node, absent: int
) -> None:
    node.driver.error = absent
    for _ in range(2):
        assert node.look() == ()
        assert node.problem is None, "a node without GPUs is well"
    node.driver.error = None
    assert node.health() == ["", ""]
    node.driver.error = absent
    assert all("not loaded" in problem for problem in node.health())
    assert node.problem is not None
    node.driver.error = None
    assert node.health() == ["", ""]


@pytest.mark.parametrize(
    "error", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]
)
def test_a_driver_that_was_reloaded_is_opened_anew(node: Node, error: int) -> None:
    node.look()
    node.driver.error = error
    assert all("driver answers with an error" in problem for problem in node.health())
    node.driver.error, node.driver.is_open = None, False
    assert node.health() == ["", ""]
    node.driver.cards[0].xids = [79]
    assert "Xid 79" in node.health()[0], "its events are listened to again"


def test_a_gpu_in_mig_mode_is_listed_as_its_mig_devices(node: Node) -> None:
    node.driver.cards[0].parts = [part("MIG-1"), None, part("MIG-2", 40448, 3)]
    whole, small, large = node.look()
    assert (whole.uuid, whole.index) == ("GPU-b", 1)
    assert small == Gpu(
        index=64, uuid="MIG-1", model=f"{H100} MIG 1g.10gb", memory_mb=9984,
        mig_profile="1g.10gb", mig_parent="GPU-a",
    )  # fmt: skip
    assert (large.index, large.uuid, large.mig_profile) == (65, "MIG-2", "3g.40gb")
    assert node.devices.names == {1: "GPU-b", 64: "MIG-1", 65: "MIG-2"}


@pytest.mark.parametrize(
    ("made", "profile"),
    [
        (part("MIG-1", 20096, 1), "1g.20gb"),
        (part("MIG-1", 20096, 2), "2g.20gb"),
        (part("MIG-1", 40448, 4), "4g.40gb"),
        (part("MIG-1", 81088, 7), "7g.80gb"),
        (part("MIG-1", 20096, 2, 1), "1c.2g.20gb"),
    ],
)
def test_a_mig_device_bears_the_name_of_its_profile(node: Node, made: Part, profile: str) -> None:
    node.driver.cards[1].parts = [made]
    assert node.look()[1].mig_profile == profile


def test_a_mig_device_keeps_its_index_and_goes_when_it_is_destroyed(node: Node) -> None:
    node.driver.cards[0].parts = [part("MIG-1"), part("MIG-2")]
    node.look()
    node.driver.cards[0].parts = [part("MIG-2"), part("MIG-3")]
    node.start()
    assert {gpu.uuid: gpu.index for gpu in node.look()} == {"GPU-b": 1, "MIG-2": 65, "MIG-3": 64}
    node.driver.cards[0].parts = None
    assert {gpu.uuid: gpu.index for gpu in node.look()} == {"GPU-a": 0, "GPU-b": 1}


def test_a_gpu_in_mig_mode_without_a_device_reports_it(node: Node) -> None:
    node.driver.cards[0].parts = []
    empty, whole = node.look()
    assert (empty.uuid, empty.is_healthy) == ("GPU-a", False)
    assert "no MIG device" in str(empty.problem)
    assert whole.is_healthy
    assert node.devices.names[1] == "GPU-b", "CUDA leaves the first one out"


def test_what_is_wrong_with_a_gpu_is_wrong_with_its_mig_devices(node: Node) -> None:
    node.driver.cards[0].parts = [part("MIG-1"), part("MIG-2")]
    node.look()
    node.driver.cards[0].xids = [95]
    assert ["Xid 95" in problem for problem in node.health()] == [False, True, True]
    node.start(boot="boot-2")
    node.driver.cards[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert ["does not answer" in problem for problem in node.health()] == [False, True, True]
    assert {gpu.uuid for gpu in node.look()} == {"GPU-b", "MIG-1", "MIG-2"}


def test_the_processes_of_a_gpu_in_mig_mode_are_those_of_its_mig_devices(node: Node) -> None:
    node.driver.cards[0].processes = [7, 8]
    node.driver.cards[0].parts = [Part("MIG-1", processes=[7]), Part("MIG-2", processes=[8])]
    node.driver.cards[1].processes = [9]
    assert node.devices.look().processes == {1: (9,), 64: (7,), 65: (8,)}


def test_a_driver_that_lists_no_processes_is_well(node: Node) -> None:
    def fail(name: str) -> None:
        if name == "nvmlDeviceGetComputeRunningProcesses":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    node.driver.before = fail
    assert node.health() == ["", ""]


GPU = Gpu(index=0, uuid="GPU-a", model=H100, memory_mb=H100_MB)
PYTHON = ForeignProcess(7, 70, "python3")


def used_by(*processes: ForeignProcess, before: Collection[ForeignProcess]) -> str:
    (gpu,) = with_foreign([GPU], staying({0: frozenset(processes)}, {0: frozenset(before)}))
    assert gpu.is_healthy is (gpu.problem is None)
    return gpu.problem or ""


def test_a_gpu_that_foreign_processes_use_names_them() -> None:
    many = [ForeignProcess(pid, 70, "a\nb") for pid in (12, 9, 11, 10)]
    one = "A process of no Muster pod uses the GPU: 7 (python3). End it."
    assert used_by(PYTHON, before=[PYTHON]) == one
    assert used_by(*many, before=many) == (
        "Processes of no Muster pod use the GPU: 9 (a?b), 10 (a?b), 11 (a?b) and 1 more. End them."
    )


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ([PYTHON], []),
        ([], [PYTHON]),
        ([PYTHON], [replace(PYTHON, ticks=69)]),
        ([ForeignProcess(7, 70, "nvidia-cuda-mps")], [ForeignProcess(7, 70, "nvidia-cuda-mps")]),
    ],
)
def test_a_process_that_has_come_or_gone_and_the_server_of_mps_are_not_foreign(
    now: list[ForeignProcess], before: list[ForeignProcess]
) -> None:
    assert used_by(*now, before=before) == ""


def test_a_gpu_that_is_broken_as_well_shows_that() -> None:
    broken = GPU.model_copy(update={"is_healthy": False, "problem": "Reset the GPU."})
    use = {0: frozenset([PYTHON])}
    assert with_foreign([broken], staying(use, use)) == (broken,)


def test_numbers_of_another_namespace_name_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(proc, "FIRST_PID_NAMESPACE", here)
    assert foreign_processes({0: [os.getpid()]}, lambda _pid: False)[0]
    assert foreign_processes({0: [os.getpid()]}, lambda _pid: True) == {0: frozenset()}
    monkeypatch.setattr(proc, "FIRST_PID_NAMESPACE", here + 1)
    assert foreign_processes({0: [os.getpid()]}, lambda _pid: False) == {}


def test_pretended_gpus_are_reported_as_simulated() -> None:
    gpus = SimulatedDevices("n1", 3).look().gpus
    assert [(gpu.index, gpu.simulated) for gpu in gpus] == [(0, True), (1, True), (2, True)]


def test_the_machine_has_something_to_offer() -> None:
    offered = capacity()
    assert offered.cpu >= 1
    assert offered.memory_mb >= 128


def test_a_real_gpu_is_well_through_load_and_faults_of_programs(tmp_path: Path) -> None:
    h100 = Recording()
    devices = NvmlDevices(h100, 20.0, boot=BOOT, home=tmp_path)
    seen: list[tuple[str, tuple[int, ...]]] = []
    seen_xids: list[tuple[int, int]] = []
    for at, recorded in enumerate(h100.looks):
        h100.at = at
        if recorded["during"] == "after faults":
            h100.fail("illegal address")
            h100.fail("assert")
        look = devices.look()
        (gpu,) = look.gpus
        assert (gpu.model, gpu.memory_mb, gpu.problem) == (H100, H100_MB, None)
        seen_xids += look.xids
        seen.append((recorded["during"], look.processes[0]))
    assert seen_xids == [(0, 31), (0, 43)]
    assert {processes for during, processes in seen if during == "matrix products"} == {(599,)}
    assert {processes for during, processes in seen if during == "idle"} == {()}
