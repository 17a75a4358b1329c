"""The ASGI application: routers, refusals, the OpenAPI document, the edge around it all."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from rest.api import cluster, config, errors, info, jobs, logs, subscriptions, tokens, users
from rest.api.context import Context
from rest.api.edge import PREFIX, PUBLIC, Edge
from rest.api.errors import ErrorBody

REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorBody,
        "description": "The request was rejected. `errors` lists each problem with its fix.",
    },
    "5XX": {"model": ErrorBody, "description": "The service can't answer now. Try again later."},
}

REFUSAL_CONTENT = {
    "application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}
}

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own telemetry: the edge has one span and one measure of each request, and FastAPI's
would be a tenth of a submission's cost.
"""

DESCRIPTION = """Muster's API. Paths, fields and states are OpenPAI's where it has them.
Log in at `/api/v2/authn/basic/login` and send the token: `Authorization: Bearer <token>`."""


def build_app(context: Context, extra_routes: Sequence[BaseRoute]) -> ASGIApp:
    """The application; ``extra_routes`` are health and metrics."""
    app = FastAPI(
        title="Muster",
        version="2",
        description=DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,  # these pages load their scripts from the internet
        redoc_url=None,
        telemetry=NO_TELEMETRY,
    )
    app.state.context = context
    app.router.routes.extend(extra_routes)
    for module in (jobs, logs, info, tokens, users, cluster, config, subscriptions):
        app.include_router(module.router, prefix=PREFIX, responses=REFUSALS)
    errors.install(app)
    _document(app)
    return Edge(app, context.metrics, context.settings, context.limits)


def _document(app: FastAPI) -> None:
    """Name the ways to authenticate in the OpenAPI document, and where none is needed; refusals
    are JSON also where the answer is text.
    """
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
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
