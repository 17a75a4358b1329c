"""Settings that can't be right are refused with their names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from runtime_agent.settings import AgentSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"port_first": 30000, "port_last": 20000}, "MUSTER_PORT_FIRST"),
        ({"port_last": 70000}, "MUSTER_PORT_LAST"),
        ({"node": ""}, "node"),
        ({"node": "n" * 65}, "node"),
        ({"task_paths": "/data, shared/data"}, "task_paths\n.* shared/data is a relative path"),
        ({"log_url": "http://" + "x" * 90}, "log_url"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AgentSettings(**wrong)


def test_a_driver_that_hangs_is_told_within_10_s() -> None:
    settings = AgentSettings()
    assert settings.device_look_s + settings.device_timeout_s < 10


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"address": "10.0.0.7"}, "http://10.0.0.7:8084"),
        ({"address": "fd00::7"}, "http://[fd00::7]:8084"),
        ({"address": "fd00::7", "log_url": "https://gpu-1.example"}, "https://gpu-1.example"),
    ],
)
def test_rest_reads_logs_at_an_address_of_either_kind(given: dict[str, Any], where: str) -> None:
    assert AgentSettings(**given).logs_at() == where
