"""The ASGI application: routers, refusals, the OpenAPI document, the edge around it all."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from rest.api import (
    alert_rules,
    alertmanager,
    alerts,
    cluster,
    config,
    errors,
    events,
    info,
    jobs,
    logs,
    mutes,
    reports,
    storages,
    subscriptions,
    tokens,
    usage,
    users,
)
from rest.api.context import Context
from rest.api.edge import PUBLIC, Edge
from rest.api.errors import ErrorBody
from rest.api.examples import EXAMPLES
from rest.api.router import REFUSALS

MODULES = (
    jobs,
    usage,
    logs,
    info,
    tokens,
    users,
    cluster,
    config,
    events,
    storages,
    subscriptions,
    alerts,
    alert_rules,
    alertmanager,
    mutes,
    reports,
)
"""Of two routes that take one path, the first does."""

REFUSAL_CONTENT = {
    "application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}
}

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own telemetry: the edge has one span and one measure of each request, and FastAPI's
would be a tenth of a submission's cost.
"""

DESCRIPTION = """Muster's API. Paths, fields and states are OpenPAI's where it has them.

Log in at `/api/v2/authn/basic/login` and send the token: `Authorization: Bearer <token>`.
A program sends an application token, also as Basic with its owner's name.

Lists that can be long have pages: `offset` skips entries, `limit` is the most entries of a page.
The answer has the `total` where it is known; in the list of jobs that is OpenPAI's `totalCount`.

Times are in ISO 8601, in UTC with Z, like 2026-01-31T13:00:00Z. OpenPAI's fields whose names end
in `Time` are in milliseconds since 1970. Each has a twin in ISO 8601 whose name ends in `At`, as
`createdTime` has `createdAt`. `submittedAt` is the twin of `submissionTime`, `retryAt` that of
`retryDelayTime`.
"""

TAGS = [
    {"name": "jobs", "description": "Submit, list, inspect and stop jobs."},
    {"name": "logs", "description": "Read and follow the logs of tasks."},
    {"name": "info", "description": "The service's version, and how to log in. No token needed."},
    {"name": "tokens", "description": "Log in and out; list, create and revoke tokens."},
    {"name": "users", "description": "Users, their virtual clusters and their highest priorities."},
    {"name": "cluster", "description": "Nodes, virtual clusters, cells, the queue, configuration."},
    {"name": "storages", "description": "Storages that tasks mount."},
    {"name": "events", "description": "Follow events of jobs, nodes and alerts."},
    {"name": "reports", "description": "GPU-hours of a week."},
    {"name": "audit", "description": "The log of all writes."},
    {"name": "alerts", "description": "Alerts, and subscriptions by webhook or e-mail."},
]


def build_app(context: Context, extra_routes: Sequence[BaseRoute]) -> ASGIApp:
    """The application; ``extra_routes`` are health and metrics."""
    app = api()
    app.state.context = context
    app.router.routes.extend(extra_routes)
    return Edge(app, context)


def document() -> dict[str, Any]:
    """The OpenAPI document. It needs no database and no settings."""
    return api().openapi()


def api() -> FastAPI:
    """The routes and refusals, without the parts of the service that endpoints use."""
    app = FastAPI(
        title="Muster",
        version="2",
        description=DESCRIPTION,
        openapi_tags=TAGS,
        redirect_slashes=False,
        docs_url=None,  # these pages load their scripts from the internet
        redoc_url=None,
        telemetry=NO_TELEMETRY,
    )
    for module in MODULES:
        app.router.routes.extend(module.router.routes)
    errors.install(app)
    _document(app)
    return app


def _document(app: FastAPI) -> None:
    """Complete the OpenAPI document: the ways to authenticate, and where none is needed; examples.
    Refusals are JSON also where the answer is text.
    """
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            schemas = document["components"]["schemas"]
            for name, example in EXAMPLES.items():
                schemas[name]["examples"] = [example]
            document["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "application": {"type": "http", "scheme": "basic"},
            }
            document["security"] = [{"token": []}, {"application": []}]
            for path, methods in document["paths"].items():
                for operation in methods.values():
                    if path in PUBLIC:
                        operation["security"] = []
                    for code in REFUSALS.keys() & operation["responses"].keys():
                        operation["responses"][code]["content"] = REFUSAL_CONTENT
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it
