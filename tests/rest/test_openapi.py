"""The OpenAPI document is true, and no request that it allows, or forbids, is answered by a 500."""

import asyncio
import json
import warnings
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = 8
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
ANSWER: dict[str, Any] = {
    "asOf": 1,
    "virtualClusters": {"default": {"gpus": {"quota": 8}}},
    "content": {"policy": {}},
    "errors": [],
    "warnings": [],
    "state": "none",
}
"""The Scheduler's, whatever it is asked."""

ENDS_THE_LOGIN = {"/api/v2/authn/basic/logout", "/api/v2/tokens/{token}"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
async def test_the_api_keeps_to_its_document(start_rest: Any, mode: GenerationMode) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(ANSWER).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    scheduler = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = scheduler.sockets[0].getsockname()[1]
    async with scheduler, start_rest(scheduler_url=f"http://127.0.0.1:{port}") as rest:
        await rest.submit("fuzzed")
        await asyncio.to_thread(fuzz, rest.url, rest.token, mode)


def fuzz(url: str, token: str, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tool's own parts
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            if operation.path in ENDS_THE_LOGIN and operation.method == "delete":
                continue

            @settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                answer = case.call(headers=headers)
                case.validate_response(answer, checks=CHECKS)

            with suppress(Unsatisfiable):  # of what takes no input nothing can be wrong
                check()


async def test_the_document_names_what_clients_need(rest: Any) -> None:
    document = (await rest.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert set(document["components"]["securitySchemes"]) == {"token", "application"}
    login = document["paths"]["/api/v2/authn/basic/login"]["post"]
    assert login["security"] == []
    submit = document["paths"]["/api/v2/jobs"]["post"]
    assert "text/yaml" in submit["requestBody"]["content"]
    assert submit["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ErrorBody"
    )


async def test_no_page_is_served_that_needs_the_internet(rest: Any) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert (await rest.client.get(path)).status_code == 404
