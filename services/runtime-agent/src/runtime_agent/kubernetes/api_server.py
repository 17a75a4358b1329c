"""The API server itself, over HTTP.

Requests and watches are raw JSON over kubernetes-asyncio's connection: its models cost three times
the processor time, and its `Watch` goes on with an outdated version for ever. Here each watch
begins with a list, and so needs neither bookmarks nor an old version.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config
from muster.errors import Broken

from runtime_agent.kubernetes.api import (
    WATCH_SILENCE_S,
    Change,
    Exists,
    Json,
    Refused,
    Unavailable,
)

REQUEST_TIMEOUT_S = 30.0
WATCH_S = (240, 300)
"""How long the server keeps a watch open, drawn anew for each."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
LONGEST_RETRY_AFTER_S = 300.0
LIST_LIMIT = 500
TEXT_CHARS = 500
_RETRIED = frozenset((401, 404, 408, 409, 425, 429))
"""Also a namespace or a right that an operator has yet to make."""
_FINAL_403 = (
    *("violates PodSecurity", "denied the request", "denied request"),
    *("usage per ", "request ratio per ", "must specify "),
)
"""Of the server's own check, of webhooks, of policies, of limits of a namespace, and of quotas that
count what the pod does not request. Missing rights, and quotas that are used up, have other words.
"""

_log = structlog.get_logger()


async def open_client(config: Path | None) -> ApiClient:
    """`config`: a kubeconfig file; None: of the service account. Raises Broken."""
    configuration = Configuration()
    try:
        if config is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(str(config), client_configuration=configuration)
    except (ConfigException, OSError) as error:
        where = "the service account" if config is None else f"MUSTER_KUBE_CONFIG: {config}"
        raise Broken(f"{where} does not lead to an API server: {error}") from error
    return ApiClient(configuration)


@dataclass
class ApiServer:
    """The real one, as one node needs it. Some of them may share a client."""

    node: str
    client: ApiClient

    async def create(self, manifest: Json) -> Json:
        """One POST."""
        kind = manifest["kind"].lower()
        path = f"/api/v1/namespaces/{manifest['metadata']['namespace']}/{kind}s"
        status, body, after_s = await self._ask("POST", path, manifest)
        if status == 409 and body.get("reason") == "AlreadyExists":
            raise Exists(body.get("message", ""))
        _check(status, body, after_s)
        return body

    async def read(self, namespace: str, name: str) -> Json | None:
        """One GET."""
        return await self._get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def claim(self, namespace: str, name: str) -> Json | None:
        """One GET."""
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        return await self._get(f"{claims}/{name}")

    async def events(self, namespace: str, uid: str) -> list[Json]:
        """One GET for each page."""
        path, about = f"/api/v1/namespaces/{namespace}/events", f"involvedObject.uid={uid}"
        return [body async for body in self._list(path, about) if not body["kind"]]

    async def _get(self, path: str) -> Json | None:
        status, body, after_s = await self._ask("GET", path)
        if status == 404:
            return None
        _check(status, body, after_s)
        return body

    async def delete(self, namespace: str, name: str, uid: str, grace_s: int | None) -> bool:
        """One DELETE. None: the pod's own grace."""
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        status, body, after_s = await self._ask("DELETE", path, options)
        if status == 404 or (status == 409 and body.get("reason") == "Conflict"):
            return False  # gone, or another object has the name
        _check(status, body, after_s)
        return True

    async def list_pods(self, namespace: str, labels: str) -> list[Json]:
        """The node's pods with these labels in a namespace. Raises Unavailable."""
        path, on_node = f"/api/v1/namespaces/{namespace}/pods", f"spec.nodeName={self.node}"
        listed = [body async for body in self._list(path, on_node, labels)]
        return [body for body in listed if not body["kind"]]

    async def _ask(
        self, method: str, path: str, body: Json | None = None
    ) -> tuple[int, Json, float]:
        """Status, answer, and after how many seconds to ask again."""
        try:
            response = await self._request(method, path, body=body, timeout=REQUEST_TIMEOUT_S)
            async with response:
                raw = await response.read()
                after_s = _seconds(response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"the API server does not answer: {_words(error)}") from error
        try:
            found = json.loads(raw) if raw else {}
        except ValueError:
            found = {"message": raw[:TEXT_CHARS].decode(errors="replace")}
        return response.status, found if isinstance(found, dict) else {}, after_s

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        timeout: float | aiohttp.ClientTimeout = REQUEST_TIMEOUT_S,  # noqa: ASYNC109  it is aiohttp's
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return await self.client.rest_client.request(  # type: ignore[no-any-return]
            method,
            f"{self.client.configuration.host}{path}",
            query_params=query,
            headers=headers,
            body=body,
            _preload_content=False,
            _request_timeout=timeout,
        )

    def follow_pods(self) -> AsyncIterator[Change]:
        """Listed and watched by the node's name, which the API server has an index of."""
        return self._follow("/api/v1/pods", f"spec.nodeName={self.node}")

    def follow_node(self) -> AsyncIterator[Change]:
        """Listed and watched by name."""
        return self._follow("/api/v1/nodes", f"metadata.name={self.node}")

    async def _follow(self, path: str, selector: str) -> AsyncIterator[Change]:
        version, backoff_s = "", FIRST_BACKOFF_S
        while True:
            after_s, is_listed = 0.0, False
            try:
                # Anew before each watch, so that whatever one has missed is seen some minutes
                # later: a version that the server has forgotten, or has yet to reach.
                yield Change("listing")
                async for body in self._list(path, selector):
                    if body["kind"].endswith("List"):
                        version = body["metadata"]["resourceVersion"]
                    else:
                        yield Change("put", body)
                is_listed = True
                yield Change("listed")
                async for event in self._watch(path, selector, version):
                    backoff_s = FIRST_BACKOFF_S
                    kind, body = event.get("type"), event.get("object", {})
                    if kind == "ERROR":
                        _log.debug("a watch ended", path=path, why=body.get("message"))
                        break
                    if kind in ("ADDED", "MODIFIED"):
                        yield Change("put", body)
                    elif kind == "DELETED":
                        yield Change("gone", body)
                else:
                    continue  # the server ended it in its time
            except (Unavailable, Refused) as error:
                _log.warning("the API server can't be read", path=path, why=str(error))
                after_s = error.after_s if isinstance(error, Unavailable) else 0.0
                if not is_listed:  # a watch alone may end early on its way
                    yield Change("unlisted")
            # So that a thousand agents do not come back at once.
            await asyncio.sleep(after_s + backoff_s * random.uniform(0.5, 1.5))  # noqa: S311  jitter
            backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)

    async def _list(self, path: str, selector: str, labels: str = "") -> AsyncIterator[Json]:
        """Each object, and then the last page without them."""
        query = {"fieldSelector": selector, "labelSelector": labels, "limit": str(LIST_LIMIT)}
        while True:
            response = await self._open(path, query, REQUEST_TIMEOUT_S)
            async with response:
                try:
                    page = json.loads(await response.read())
                    items, more = page["items"], page["metadata"].get("continue")
                except (KeyError, TypeError) as error:  # of what stands between, perhaps
                    raise Unavailable("the answer is no list of Kubernetes") from error
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    raise Unavailable(_words(error)) from error
            for body in items:
                yield {"kind": "", **body}
            if not more:
                yield {**page, "items": []}
                return
            query["continue"] = more

    async def _watch(self, path: str, selector: str, version: str) -> AsyncIterator[Json]:
        query = {
            "fieldSelector": selector,
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*WATCH_S)),  # noqa: S311  jitter
        }
        timeout = aiohttp.ClientTimeout(sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        async with await self._open(path, query, timeout) as response:
            try:
                async for line in response.content:
                    yield json.loads(line)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                raise Unavailable(_words(error)) from error

    async def _open(
        self,
        path: str,
        query: dict[str, str],
        timeout: float | aiohttp.ClientTimeout,  # noqa: ASYNC109  it is aiohttp's
    ) -> aiohttp.ClientResponse:
        """Raises Unavailable."""
        try:
            response = await self._request("GET", path, query=query, timeout=timeout)
            if response.status == 200:
                return response
            async with response:
                text = (await response.text())[:TEXT_CHARS]
                after_s = _seconds(response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(_words(error)) from error
        raise Unavailable(f"HTTP {response.status}: {text}", after_s)

    async def close(self) -> None:
        """Ends watches too."""
        await self.client.close()


async def connect(node: str, config: Path | None) -> ApiServer:
    """The API server, for one node. Raises Broken."""
    return ApiServer(node, await open_client(config))


def _check(status: int, body: Json, after_s: float) -> None:
    """Raises Refused or Unavailable where the answer is no success."""
    if 200 <= status < 300:
        return
    text = str(body.get("message") or f"HTTP {status}")[:TEXT_CHARS]
    is_final = status != 403 or any(words in text for words in _FINAL_403)
    if status >= 500 or status in _RETRIED or not is_final:
        raise Unavailable(text, after_s)
    raise Refused(text)


def _seconds(retry_after: str) -> float:
    """The API server gives seconds; a date, as a proxy may give, counts as none."""
    return min(float(retry_after), LONGEST_RETRY_AFTER_S) if retry_after.isdecimal() else 0.0


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
