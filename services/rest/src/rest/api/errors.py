"""Every refusal has one shape: ``{code, message, errors: [{path, line, column, message}]}``."""

from collections.abc import Mapping
from typing import Any

import asyncpg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from muster.db import is_transient
from muster.errors import Problem, Rejected, Transient
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from rest.api.models import ShownProblem
from rest.api.texts import FIXES, TYPE_FIXES
from rest.domain.throttle import TooManyRequests
from rest.handlers.submit import problem_json

_log = structlog.get_logger()

STATUS = {
    "InvalidProtocolError": 400,
    "InvalidParametersError": 400,
    "InvalidConfigError": 400,
    "WrongCodeError": 400,
    "NoVirtualClusterError": 404,
    "UnauthorizedUserError": 401,
    "IncorrectPasswordError": 401,
    "ForbiddenUserError": 403,
    "NoUserError": 404,
    "NoJobError": 404,
    "NoJobConfigError": 404,
    "NoTaskLogError": 404,
    "NoTokenError": 404,
    "NoNodeError": 404,
    "NoCellError": 404,
    "NoRecordError": 404,
    "NoReportError": 404,
    "NoConfigError": 404,
    "NoSubscriptionError": 404,
    "NoDeliveryError": 404,
    "NoStorageError": 404,
    "NoActionError": 404,
    "NoTagError": 404,
    "NoMuteError": 404,
    "ConflictActionError": 409,
    "NoApiError": 404,
    "ConflictJobError": 409,
    "ConflictUserError": 409,
    "LastAdminError": 409,
    "UnconfirmedEmailError": 409,
    "DelaysConfigError": 409,
    "WhatIfRunningError": 409,
    "WhatIfFailedError": 409,
    "ConflictConfigError": 412,
    "RequestTooLargeError": 413,
    "IdempotencyKeyError": 422,
    "NoVersionError": 428,
    "TooManyRequestsError": 429,
    "NotConfiguredError": 501,
    "AgentAddressError": 502,
}
"""OpenPAI's codes and those that it has no name for."""

BUSY = "UnavailableError"
OURS = "Value error, "
"""What pydantic puts before the words of a check of our own."""
RETRY_AFTER_S = 1


class ErrorBody(BaseModel):
    """Why a request was refused."""

    code: str
    message: str
    errors: list[ShownProblem] = []


def refusal(
    status: int,
    code: str,
    message: str,
    problems: tuple[Problem, ...] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """A refusal."""
    content = {
        "code": code,
        "message": message,
        "errors": [problem_json(problem) for problem in problems],
    }
    return JSONResponse(content, status, headers)


def install(app: FastAPI) -> None:
    """Make the app refuse in this shape, whatever goes wrong."""
    app.add_exception_handler(Rejected, _rejected)
    app.add_exception_handler(Transient, _transient)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(asyncpg.DataError, _unstorable)
    app.add_exception_handler(asyncpg.PostgresError, _database)
    app.add_exception_handler(asyncpg.InterfaceError, _database)
    app.add_exception_handler(asyncpg.InternalClientError, _database)
    app.add_exception_handler(OSError, _database)
    app.add_exception_handler(Exception, _unexpected)


async def _rejected(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Rejected)
    return rejection(error)


def rejection(error: Rejected) -> JSONResponse:
    """The answer to a request that is rejected."""
    status = STATUS.get(error.code, 400)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    if isinstance(error, TooManyRequests):
        headers = {"Retry-After": str(error.retry_after_s)}
    return refusal(status, error.code, str(error), error.problems, headers)


async def _transient(_request: Request, error: Exception) -> JSONResponse:
    return refusal(503, BUSY, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    if any(detail.get("type") == "json_invalid" for detail in error.errors()):
        return _no_json(error)
    problems = tuple(
        Problem(_place(detail["loc"]), _fault(detail)) for detail in error.errors()[:100]
    )
    first = problems[0] if problems else Problem("", "is not valid")
    message = f"The request is not valid: `{first.path}` {first.message}."
    return refusal(400, "InvalidParametersError", message, problems)


def _no_json(error: RequestValidationError) -> JSONResponse:
    detail = next(each for each in error.errors() if each.get("type") == "json_invalid")
    place = f"from character {int(detail['loc'][-1]) + 1} on"
    reason = _lower(str(detail.get("ctx", {}).get("error", "")))
    problem = Problem("", f"is not JSON {place}: {reason}")
    return refusal(400, "InvalidParametersError", f"The body {problem.message}.", (problem,))


def _place(loc: tuple[int | str, ...]) -> str:
    """A place without the word that says where in the request it is, unless it is all there is."""
    parts = loc[1:] if len(loc) > 1 else loc
    return ".".join(str(part) for part in parts)


def _fault(detail: Mapping[str, Any]) -> str:
    pattern = detail.get("ctx", {}).get("pattern", "")
    fix = FIXES.get(pattern) or TYPE_FIXES.get(detail.get("type", ""))
    return fix or _lower(str(detail["msg"]).removeprefix(OURS))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    match error.status_code:
        case 404:
            message = f"There is nothing at {request.url.path[:200]}; see /openapi.json."
            return refusal(404, "NoApiError", message)
        case 405:
            allowed = ", ".join(_methods(request))
            message = f"{request.method} is not allowed here; allowed: {allowed}."
            return refusal(405, "NoApiError", message, headers={"Allow": allowed})
        case 408:
            return refusal(408, "RequestTimeoutError", str(error.detail), headers=headers)
        case 413:
            return refusal(413, "RequestTooLargeError", str(error.detail), headers=headers)
        case 503:
            return refusal(503, BUSY, str(error.detail), headers={"Retry-After": "1"})
        case status:
            code = "InvalidParametersError" if status < 500 else "UnknownError"
            return refusal(status, code, str(error.detail), headers=headers)


def _methods(request: Request) -> list[str]:
    """What goes at this path, over all its routes."""
    found: set[str] = set()
    for template, methods in request.app.openapi()["paths"].items():
        if compile_path(template)[0].match(request.url.path):
            found |= {method.upper() for method in methods}
    return sorted(found)


async def _unstorable(_request: Request, error: Exception) -> JSONResponse:
    _log.info("a value can't be stored", error=str(error))
    message = "A value of the request can't be stored: it has a NUL or is out of range."
    return refusal(400, "InvalidParametersError", message)


async def _database(request: Request, error: Exception) -> JSONResponse:
    if not is_transient(error):
        return await _unexpected(request, error)
    _log.warning("the database does not answer", error=str(error) or type(error).__name__)
    message = "The database does not answer; try again in a moment."
    return refusal(503, BUSY, message, headers={"Retry-After": str(RETRY_AFTER_S)})


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("a request failed", method=request.method, path=request.url.path, exc_info=error)
    message = (
        "Internal error. An operator finds the cause in REST's log at the time of this answer."
    )
    return refusal(500, "UnknownError", message)
