"""When the repair of a node has ended."""

from muster.contracts.alerts import Outcome
from muster.contracts.jobs import JobState
from rest.domain.repairs import answered, job_ended


def test_the_last_line_of_a_script_is_kept_without_control_characters() -> None:
    told = answered(is_success=False, text="one\n\x1b[31mGPU 3\tis gone\x1b[0m \n\n")
    assert (told.outcome, told.reason) == (Outcome.FAILED, "[31mGPU 3 is gone [0m")
    assert answered(is_success=True, text="\n").reason == "The script succeeded and said nothing."


def test_a_preflight_job_ends_by_its_state_or_by_the_time() -> None:
    def ended(state: JobState | None, *, is_late: bool = False) -> tuple[Outcome, str] | None:
        found = job_ended("ada~j", state, None, "a GPU is bad.", is_late=is_late)
        return None if found is None else (found.outcome, found.reason)

    assert ended(JobState.RUNNING) is None
    assert ended(JobState.SUCCEEDED, is_late=True) == (
        Outcome.DONE,
        "The preflight job ada~j succeeded.",
    )
    late = "The preflight job ada~j did not end in time. It waits: a GPU is bad."
    assert ended(JobState.WAITING, is_late=True) == (Outcome.FAILED, late)
    assert ended(None) == (Outcome.FAILED, "The preflight job ada~j is gone.")
    why = "The preflight job ada~j stopped: nobody knows why"
    assert ended(JobState.STOPPED) == (Outcome.FAILED, why)
