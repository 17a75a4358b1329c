"""Lets only REST read a service over HTTP: the check of its tokens, where the service has a key."""

import time

import structlog
from pydantic import SecretStr
from starlette.requests import Request

from muster.metrics import PlumbingMetrics
from muster.service_keys import bearer_token, refusal

_log = structlog.get_logger()


class TokenGuard:
    """The token check of one audience. Without a key any client may read: then the service listens
    on loopback only (muster.settings).
    """

    def __init__(self, audience: str, key: SecretStr, metrics: PlumbingMetrics) -> None:
        self._audience = audience
        self._key = key.get_secret_value()
        self._metrics = metrics

    def refusal(self, request: Request) -> str | None:
        """Why a request may not be answered; None where it may."""
        if not self._key:
            return None
        token = bearer_token(request.headers.get("authorization", ""))
        path = request.scope["path"]
        why = refusal(self._key, self._audience, path, token, now_s=time.time())
        if why is not None:
            self._metrics.tokens_refused.inc()
            address = request.client.host if request.client else ""
            _log.warning("a request without a valid token", path=path, address=address, why=why)
        return why
