"""What is sealed to a key, only its private key opens."""

import subprocess
import sys

import pytest
from muster.sealing import (
    make_private_key,
    public_key_of,
    seal,
    seal_again,
    sealed_length,
    unseal,
)

KEY, OTHER = make_private_key(), make_private_key()
PUBLIC = public_key_of(KEY)


@pytest.mark.parametrize("text", ["", "marker", "ü\0\n" * 1000])
def test_what_is_sealed_is_opened_by_any_of_the_keys(text: str) -> None:
    for sealed in (seal(text, PUBLIC), seal_again(text, PUBLIC, OTHER)):
        assert unseal(sealed, [OTHER, KEY]) == text
        assert len(sealed) == sealed_length(len(text.encode()))


def test_another_key_and_a_changed_text_open_nothing() -> None:
    sealed = seal("marker", PUBLIC)
    for wrong, keys in ((sealed, [OTHER]), (sealed, []), ("AAAA" + sealed[4:], [KEY])):
        with pytest.raises(ValueError, match="another key, or was changed"):
            unseal(wrong, keys)
    with pytest.raises(ValueError, match="no sealed text"):
        unseal("%", [KEY])


def test_sealed_again_it_is_the_same_and_only_then() -> None:
    sealed = seal_again("marker", PUBLIC, KEY)
    assert sealed == seal_again("marker", PUBLIC, KEY)
    others = [
        seal_again("marker2", PUBLIC, KEY),
        seal_again("marker", public_key_of(OTHER), KEY),
        seal_again("marker", PUBLIC, OTHER),
    ]
    # The first 32 bytes are the ephemeral key: no two texts share one.
    assert len({each[:40] for each in (sealed, *others)}) == 4


@pytest.mark.parametrize("key", ["", "marker", "A" * 44, "ü"])
def test_what_is_no_key_is_refused_with_the_way_to_one(key: str) -> None:
    with pytest.raises(ValueError, match="make_secrets_key") as caught:
        public_key_of(key)
    assert "marker" not in str(caught.value)


def test_the_command_prints_a_pair() -> None:
    command = [sys.executable, "-m", "muster.make_secrets_key"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found = dict(line.split("=", 1) for line in lines)
    assert public_key_of(found["MUSTER_SECRETS_KEYS"]) == found["MUSTER_SECRETS_PUBLIC_KEY"]
