"""The keys and tokens with which REST reads agents, the Scheduler and Alerting over HTTP.

REST holds one cluster key. Each service that REST reads holds a key derived from it for its own
audience (``scheduler``, ``alerting``, ``agent/<node>``). A token names one audience, one path and
an expiry, so that a stolen token or service key opens nothing elsewhere.
``python -m muster.derive_key AUDIENCE`` prints the service key of an audience.
"""

import hashlib
import hmac
from urllib.parse import quote, unquote

LIFE_S = 60
"""A token's validity after it was made."""

CLOCK_SKEW_S = 30
"""The allowed difference between the clocks of REST and of the service that it reads."""

KEY_BYTES = 32
"""The fewest characters of a cluster key: shorter ones can be found from a service key."""

SCHEDULER = "scheduler"
"""The audience of the Scheduler."""

ALERTING = "alerting"
"""The audience of Alerting."""


def agent(node: str) -> str:
    """The audience of a node's agent."""
    return f"agent/{node}"


def service_key(cluster_key: str, audience: str) -> str:
    """The key of one service. Raises ValueError where the cluster key is too short."""
    if len(cluster_key) < KEY_BYTES:
        raise ValueError(f"a cluster key has at least {KEY_BYTES} characters")
    return _mac(cluster_key, f"service key\n{audience}")


def make_token(key: str, audience: str, path: str, *, now_s: float) -> str:
    """A token for one path of one service. ``path``: as the service sees it, not quoted."""
    expires_s = int(now_s) + LIFE_S
    return f"{quote(audience, safe='/')}:{expires_s}:{_sign(key, audience, expires_s, path)}"


def refusal(key: str, audience: str, path: str, token: str, *, now_s: float) -> str | None:
    """Why a token does not open this path of this service, with the fix; None where it does."""
    named, _, rest = token.partition(":")
    expires, _, signature = rest.partition(":")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        return "The service token is missing or is none: only REST reads here, with its own."
    if unquote(named) != audience:
        return (
            f"The service token is for another audience than {audience}: the service's name or"
            " MUSTER_NODE differs from what REST knows."
        )
    expected = _sign(key, audience, int(expires), path)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        return (
            f"The service token is for another path, or MUSTER_SERVICE_KEY of {audience} was not"
            " derived from REST's MUSTER_CLUSTER_KEY: derive it anew with"
            f" `python -m muster.derive_key {audience}`."
        )
    left_s = int(expires) - now_s
    if not -CLOCK_SKEW_S <= left_s <= LIFE_S + CLOCK_SKEW_S:
        return (
            f"The service token of {audience} ends {left_s:.0f} s from now; 0 to {LIFE_S} s, and"
            f" {CLOCK_SKEW_S} s of clock skew, are allowed: the clock of REST or of {audience} is"
            " off. Synchronise both (NTP)."
        )
    return None


def bearer_token(authorization: str) -> str:
    """The token of an ``Authorization: Bearer`` header; empty where there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _sign(key: str, audience: str, expires_s: int, path: str) -> str:
    return _mac(key, f"token\n{audience}\n{expires_s}\n{path}")


def _mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
