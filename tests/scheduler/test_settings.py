"""Settings that would stop each other's work are refused, with both names."""

from typing import Any

import pytest
from pydantic import ValidationError
from scheduler.settings import SchedulerSettings


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"leader_renew_s": 2.0}, "MUSTER_LEADER_RENEW_S .* MUSTER_LEADER_EXPIRY_S"),
        ({"changes_kept_s": 0.5}, "MUSTER_LEADER_RENEW_S .* MUSTER_CHANGES_KEPT_S"),
        ({"probe_s": 9.0}, "MUSTER_PROBE_S .* MUSTER_PROBE_WINDOW_S"),
        ({"leader_cut_off_s": 8.0}, "MUSTER_PROBE_WINDOW_S .* MUSTER_LEADER_CUT_OFF_S"),
        ({"lease_timeout_s": 8.0}, "MUSTER_PROBE_WINDOW_S .* MUSTER_LEASE_TIMEOUT_S"),
        ({"watch_s": 6.0}, "MUSTER_WATCH_S .* MUSTER_STALL_S"),
        (
            {"watch_s": 9.0, "stall_s": 10.0, "lease_timeout_s": 8.5},
            "MUSTER_WATCH_S .* MUSTER_LEASE_TIMEOUT_S",
        ),
    ],
    ids=["lead", "changes", "probe", "deaf", "bus", "stall", "lease"],
)
def test_contradicting_settings_are_refused(wrong: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        SchedulerSettings(**wrong)
