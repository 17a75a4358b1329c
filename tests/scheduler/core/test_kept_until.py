"""Two moments until which cells are kept: of another job's, for which a gang waits, and its own."""

from scenes import Scene, config, gang, owning
from scheduler.domain.core.explain import with_kept
from scheduler.domain.core.model import Reason
from scheduler.domain.core.records import Reservation
from scheduler.domain.notices import published_reason


def test_a_reason_with_the_moment_of_another_job_tells_no_other_as_a_number() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("mine", "x", 1))
    kept = Reservation(scene.core.gangs["mine"].workload, {}, 1_795_855_367.6, 0.0)
    kept.is_kept = True
    other = Reason(
        "reservation", "Cells are kept until 1795855300 for it.", {"keptUntil": 1_795_855_300.0}
    )
    text = published_reason(with_kept(other, kept), {}).text
    assert "179585" not in text
    assert text.endswith("Cells of its last attempt are kept for it.")
