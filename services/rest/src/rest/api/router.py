"""The routers of the API's modules: where their paths lie, and what each route is documented with.

Each is complete by itself. FastAPI would look into every endpoint once more for a router that is
included in another one.
"""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from rest.api.errors import ErrorBody

PREFIX = "/api/v2"

REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorBody,
        "description": "The request was rejected. `errors` lists each problem with its fix.",
    },
    "5XX": {"model": ErrorBody, "description": "The service can't answer now. Try again later."},
}


def new_router(path: str = "", *, tag: str, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """A module's router for paths below ``path``."""
    return APIRouter(
        prefix=PREFIX + path,
        tags=[tag],
        responses=REFUSALS,
        route_class=route_class,
        generate_unique_id_function=_operation_id,
    )


def _operation_id(route: APIRoute) -> str:
    """The endpoint's name in camel case: `submit_job` is `submitJob`."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)
