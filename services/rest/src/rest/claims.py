"""Reads PersistentVolumeClaims in the namespaces of jobs, so that a job whose storage nobody can
mount is refused at submission. It changes nothing there.

This is plain HTTP: kubernetes-asyncio would add 40 MB and a second to each start of REST.
"""

import asyncio
import ssl
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import httpx2
import structlog
from muster.claims import why_not_bound, why_not_everywhere
from muster.errors import Broken, Transient

from rest.metrics import RestMetrics
from rest.settings import RestSettings

Json = dict[str, Any]

_log = structlog.get_logger()

TEXT_SHOWN = 200


class Claims:
    """Asks the API server each time: a claim can be bound or lost at any moment."""

    def __init__(self, settings: RestSettings, metrics: RestMetrics) -> None:
        """Raises Broken where the service account's files can't be read."""
        self._settings = settings
        self._metrics = metrics
        self._client = None if settings.kube_api_url is None else _client(settings)

    async def close(self) -> None:
        """Give connections back."""
        if self._client is not None:
            await self._client.aclose()

    async def unbound(self, names: Iterable[str], namespace: str) -> dict[str, str]:
        """Why pods of the namespace can't mount these claims, and the fix, by claim. Those that can
        be mounted are not in it; nor is any where there is no API server to ask.

        Raises Transient where the API server does not tell.
        """
        claims = await self._read_all(names, namespace)
        whys = {name: why_not_bound(name, namespace, claim) for name, claim in claims.items()}
        return {name: why for name, why in whys.items() if why is not None}

    async def problem(self, name: str, namespace: str) -> str | None:
        """Why pods of the namespace can't mount the claim, or not on every node; None: they can, or
        there is no API server to ask. Raises as above.
        """
        for claim in (await self._read_all([name], namespace)).values():
            why = why_not_bound(name, namespace, claim)
            if why is not None or claim is None:
                return why
            return why_not_everywhere(name, namespace, claim)
        return None

    async def _read_all(self, names: Iterable[str], namespace: str) -> dict[str, Json | None]:
        if self._client is None:
            return {}
        found = {}
        try:
            async with asyncio.timeout(self._settings.peer_timeout_s):
                for name in names:
                    if name not in found:
                        found[name] = await _read(self._client, namespace, name)
        except (httpx2.HTTPError, TimeoutError, OSError, ValueError, Transient) as error:
            self._metrics.peer_failures.labels("kubernetes").inc()
            _log.warning("claims can't be read", namespace=namespace, error=repr(error))
            raise Transient("Kubernetes does not tell whether claims are bound.") from error
        return found


class _ServiceAccount(httpx2.Auth):
    """The token as it is now: kubelet replaces it every hour."""

    def __init__(self, token: Path) -> None:
        self._token = token

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        yield request


def _client(settings: RestSettings) -> httpx2.AsyncClient:
    folder = settings.kube_service_account
    try:
        authorities = ssl.create_default_context(cafile=folder / "ca.crt")
    except OSError as error:
        raise Broken(f"MUSTER_KUBE_SERVICE_ACCOUNT: {folder}/ca.crt: {error}") from error
    return httpx2.AsyncClient(
        base_url=settings.kube_api_url or "",
        auth=_ServiceAccount(folder / "token"),
        verify=authorities,
        timeout=httpx2.Timeout(settings.peer_timeout_s, connect=settings.peer_connect_s),
        follow_redirects=False,
        trust_env=False,
    )


async def _read(client: httpx2.AsyncClient, namespace: str, name: str) -> dict[str, Any] | None:
    """The claim; None where there is none. Raises Transient, HTTPError, OSError, ValueError."""
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    answer = await client.get(path)
    body = answer.json()
    kind = body.get("kind") if isinstance(body, dict) else None
    if answer.status_code == 200 and kind == "PersistentVolumeClaim":
        return dict(body)
    if answer.status_code == 404 and kind == "Status":
        return None
    raise Transient(f"{path}: HTTP {answer.status_code}: {answer.text[:TEXT_SHOWN]}")
