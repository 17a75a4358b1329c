"""REST's tokens for an agent or the Scheduler, for a test's own client."""

import time
from collections.abc import Generator
from urllib.parse import unquote

import httpx2
from muster.service_keys import make_token, service_key

CLUSTER_KEY = "the-cluster-key-of-these-tests-is-long"


class ServiceAuth(httpx2.Auth):
    """Signs each request of a client for one audience."""

    def __init__(self, audience: str, cluster_key: str = CLUSTER_KEY) -> None:
        self._audience = audience
        self._key = service_key(cluster_key, audience)

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        path = unquote(request.url.raw_path.decode().partition("?")[0])
        token = make_token(self._key, self._audience, path, now_s=time.time())
        request.headers["Authorization"] = f"Bearer {token}"
        yield request
