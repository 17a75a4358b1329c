"""Signing secrets are derived: the same on both sides, another for each subscription."""

import base64

import pytest
from muster.webhook_secrets import PREFIX, signing_secret


def test_a_secret_is_the_same_whenever_it_is_made() -> None:
    secret = signing_secret("key", "s1", 1)
    assert secret == "whsec_z6qsthXCObkxsbbShbNYZAId4jvDtMiTVJE6iQRjOXo="
    assert len(base64.b64decode(secret.removeprefix(PREFIX))) == 32


def test_another_key_subscription_or_version_makes_another_secret() -> None:
    made = {
        signing_secret("key", "s1", 1),
        signing_secret("other", "s1", 1),
        signing_secret("key", "s2", 1),
        signing_secret("key", "s1", 2),
    }
    assert len(made) == 4


def test_an_empty_key_makes_no_secret() -> None:
    with pytest.raises(ValueError, match="MUSTER_WEBHOOK_KEY"):
        signing_secret("", "s1", 1)
