"""Settings that would break a promise are refused."""

from typing import Any

import pytest
from alerting.settings import AlertingSettings
from pydantic import SecretStr


@pytest.mark.parametrize(
    ("settings", "notice"),
    [
        ({"delivery_lease_s": 15}, "still being sent"),
        ({"smtp_timeout_s": 300}, "still being sent"),
        ({"smtp_sender": "muster@"}, "muster@example.org"),
        ({"docs_url": "git.example/docs"}, "http or https"),
        ({"webhook_allow_networks": "10.0.0.1/8"}, "10.0.0.1/8"),
    ],
)
def test_what_would_break_a_promise_is_refused(settings: dict[str, Any], notice: str) -> None:
    with pytest.raises(ValueError, match=notice):
        AlertingSettings(**settings)


def test_names_that_nobody_answers_for_take_no_look_up_of_other_receivers() -> None:
    settings = AlertingSettings(database_url=SecretStr("postgresql://unused"))
    assert settings.resolver_threads >= settings.webhook_slots
