"""The OpenAPI document is true, and no request that it allows, or forbids, is answered by a 500."""

import asyncio
import json
import re
import warnings
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from muster.protocol import parse_job
from rest.api.build import document
from rest.api.examples import CONFIG_FILE, EXAMPLES, JOB_FILE
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from seeds import how_many

CASES = how_many(3, deep=8)
"""Of each operation, valid and invalid."""
DOCUMENT = document()
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
ANSWER: dict[str, Any] = {
    "asOf": 1,
    "job": "j",
    "total": 0,
    "offset": 0,
    "limit": 1,
    "gangs": [],
    "cells": [],
    "chain": "a100",
    "cell": "node",
    "wanted": 1,
    "freeAlready": 0,
    "gpus": 0,
    "lostGpuSeconds": 0,
    "isLeast": True,
    "isCut": False,
    "reason": None,
    "moves": [],
    "virtualClusters": {"default": {"gpus": {"quota": 8}}},
    "content": {"policy": {}},
    "errors": [],
    "warnings": [],
    "state": "none",
    "alerts": [],
    "actions": [],
    "trial": [],
    "receiver": {"failures": 0, "pausedUntil": None, "disabled": None},
    "deliveries": [],
}
"""The Scheduler's and Alerting's, whatever they are asked."""

NEEDS_THE_BUS = "/api/v2/events"
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

    peer = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}"
    urls = {"scheduler_url": url, "alerting_url": url, "alertmanager_token": "another"}
    async with peer, start_rest(**urls) as rest:
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
            if operation.path == NEEDS_THE_BUS:  # which is away here
                continue

            @settings(
                max_examples=CASES,
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


def test_every_operation_has_a_name_of_its_own_and_texts() -> None:
    names = [operation["operationId"] for operation in operations()]
    assert len(names) == len(set(names))
    assert {"submitJob", "listJobs", "listQueue", "logIn"} <= set(names)
    for operation in operations():
        name = operation["operationId"]
        assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", name), name
        assert operation["tags"], name
        assert operation["summary"], name
        assert operation["description"], name
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (name, parameter["name"])


def test_bodies_and_main_answers_have_examples() -> None:
    """Also in lists; a short answer needs none."""
    plain = {"Done", "WhoAmI", "TaskAttempts", "LogLocations", "ShownNode", "NodePage"}
    plain |= {"ShownCluster", "ShownVirtualCluster"}
    for operation in operations():
        answers = [operation["responses"][code] for code in operation["responses"] if code < "3"]
        for part in [operation.get("requestBody", {}), *answers]:
            for content in part.get("content", {}).values():
                for name in references(content):
                    schema = DOCUMENT["components"]["schemas"][name]
                    assert schema.get("examples") or name in plain, (operation, name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_true(name: str) -> None:
    """It has all fields of its schema and no others, unless it is a request."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(EXAMPLES[name], schema)
    unknown(EXAMPLES[name], DOCUMENT["components"]["schemas"][name], name)


def unknown(value: Any, schema: dict[str, Any], place: str) -> None:
    """Fail on a field that its schema does not name, at any depth."""
    for each in schema.get("anyOf", ()):
        if isinstance(value, dict) == ("$ref" in each or each.get("type") == "object"):
            unknown(value, each, place)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        unknown(value, DOCUMENT["components"]["schemas"][name], place)
    elif isinstance(value, list):
        for each in value:
            unknown(each, schema.get("items", {}), place)
    elif isinstance(value, dict) and "properties" in schema:
        assert value.keys() <= schema["properties"].keys(), place
        for field, each in value.items():
            unknown(each, schema["properties"][field], f"{place}.{field}")


def test_the_files_of_the_examples_can_be_read() -> None:
    assert parse_job(JOB_FILE.encode()).spec.virtual_cluster == "vision"
    assert set(yaml.safe_load(CONFIG_FILE)) == {"virtualClusters", "policy"}
    login = DOCUMENT["paths"]["/api/v2/authn/basic/login"]["post"]["requestBody"]["content"]
    for content in login.values():
        jsonschema.validate(content["example"], content["schema"])


def operations() -> list[dict[str, Any]]:
    return [each for methods in DOCUMENT["paths"].values() for each in methods.values()]


def references(content: Any) -> set[str]:
    """The schemas that a content names, itself or in a list."""
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(content)))
