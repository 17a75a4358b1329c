"""Keys and tokens between REST and what it reads: each opens one thing, for one minute."""

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from muster.service_keys import (
    CLOCK_SKEW_S,
    LIFE_S,
    agent,
    bearer_token,
    make_token,
    refusal,
    service_key,
)
from service_auth import CLUSTER_KEY

NOW_S = 1_800_000_000.5
AUDIENCES = st.text(min_size=1, max_size=20).map(agent)
PATHS = st.text(max_size=40).map(lambda text: f"/logs/{text}")


@given(AUDIENCES, PATHS, st.floats(-CLOCK_SKEW_S, LIFE_S + CLOCK_SKEW_S - 1))
def test_a_token_opens_its_path_of_its_service_while_it_lives(
    audience: str, path: str, age_s: float
) -> None:
    key = service_key(CLUSTER_KEY, audience)
    token = make_token(key, audience, path, now_s=NOW_S)
    assert token.isascii()
    assert bearer_token(f"Bearer {token}") == token
    assert refusal(key, audience, path, token, now_s=NOW_S + age_s) is None


@given(AUDIENCES, AUDIENCES, PATHS, PATHS)
def test_a_token_opens_nothing_else(audience: str, other: str, path: str, elsewhere: str) -> None:
    token = make_token(service_key(CLUSTER_KEY, audience), audience, path, now_s=NOW_S)
    for there, asked in ((audience, elsewhere), (other, path), (other, elsewhere)):
        why = refusal(service_key(CLUSTER_KEY, there), there, asked, token, now_s=NOW_S)
        assert (why is None) == ((there, asked) == (audience, path))


@given(AUDIENCES, AUDIENCES)
def test_a_stolen_service_key_makes_no_token_of_another(audience: str, other: str) -> None:
    stolen = service_key(CLUSTER_KEY, audience)
    token = make_token(stolen, other, "/logs/p/all", now_s=NOW_S)
    key = service_key(CLUSTER_KEY, other)
    assert (refusal(key, other, "/logs/p/all", token, now_s=NOW_S) is None) == (audience == other)


@given(st.text(max_size=200))
def test_whatever_comes_as_a_token_is_refused_with_a_reason(token: str) -> None:
    key = service_key(CLUSTER_KEY, "scheduler")
    assert refusal(key, "scheduler", "/queue", token, now_s=NOW_S)


def test_the_command_prints_the_key_of_a_node_and_takes_no_key_as_an_argument() -> None:
    def derive(*words: str, **more: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "muster.derive_key", *words],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, out, _ = derive("agent/gpu-7", MUSTER_CLUSTER_KEY=CLUSTER_KEY)
    assert (code, out) == (0, service_key(CLUSTER_KEY, "agent/gpu-7") + "\n")
    for words, key in (((), CLUSTER_KEY), (("gpu-7",), CLUSTER_KEY), (("scheduler",), "")):
        code, out, errors = derive(*words, MUSTER_CLUSTER_KEY=key)
        assert (code, out) == (1, "")
        assert "MUSTER_CLUSTER_KEY is not set" in errors or "usage" in errors
