"""Logging in and out, and tokens."""

import json
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from muster.db import transaction
from muster.errors import Rejected
from pydantic import BaseModel, Field, ValidationError

from rest.api.context import Address, Here, Person, User, bearer
from rest.handlers.access import digest
from rest.store import accounts, audit

router = APIRouter(tags=["tokens"])

TokenText = Annotated[str, Path(min_length=1, max_length=200, description="A token, or its id.")]


class Login(BaseModel):
    """Who logs in. ``expiration``: how long the token lives, in seconds."""

    username: Annotated[str, Field(min_length=1, max_length=64)]
    password: Annotated[str, Field(min_length=1, max_length=256)]
    expiration: Annotated[int | None, Field(ge=60, le=7 * 86_400)] = None


class LoggedIn(BaseModel):
    """The token of a login."""

    user: str
    token: str
    admin: bool
    hasGitHubPAT: bool = False


class ApplicationToken(BaseModel):
    """A token that does not expire. It is shown this once."""

    token: str
    application: bool = True


class ListedToken(BaseModel):
    """A live token, without itself. Times in milliseconds."""

    id: str
    application: bool
    createdTime: int
    expirationTime: int | None


class TokenList(BaseModel):
    """The caller's live tokens."""

    tokens: list[ListedToken]


class WhoAmI(BaseModel):
    """What a token is good for."""

    username: str
    application: bool
    admin: bool


class Done(BaseModel):
    """It is done."""

    message: str


_LOGIN_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Login.model_json_schema()},
            "application/x-www-form-urlencoded": {"schema": Login.model_json_schema()},
        },
    }
}


@router.post("/authn/basic/login", response_model=LoggedIn, openapi_extra=_LOGIN_BODY)
@router.post("/token", response_model=LoggedIn, openapi_extra=_LOGIN_BODY)
async def log_in(request: Request, here: Here, address: Address) -> LoggedIn:
    """Log in with a password; as JSON or as a form."""
    login = _read_login(await request.body(), request.headers.get("content-type", ""))
    token, is_admin = await here.access.log_in(
        login.username, login.password, login.expiration, address
    )
    return LoggedIn(user=login.username, token=token, admin=is_admin)


def _read_login(body: bytes, content_type: str) -> Login:
    try:
        if content_type.startswith("application/x-www-form-urlencoded"):
            fields: object = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
        else:
            fields = json.loads(body)
        return Login.model_validate(fields)
    except (ValueError, RecursionError) as error:
        details = (
            error.errors(include_input=False, include_url=False)
            if isinstance(error, ValidationError)
            else [{"loc": ("body",), "msg": "must be a JSON object or a form"}]
        )
        found = [{**detail, "loc": ("body", *detail["loc"])} for detail in details]
        raise RequestValidationError(found) from None


@router.delete("/authn/basic/logout", response_model=Done)
async def log_out(request: Request, here: Here, caller: User, address: Address) -> Done:
    """Revoke the token that is presented."""
    _, token = bearer(request)
    async with transaction(here.pool) as conn:
        await accounts.delete_token(conn, digest(token), "")
        entry = audit.Entry(caller.username, "logout", caller.username, address)
        await audit.record(conn, [entry])
    here.access.forget_cached()
    return Done(message="The token is revoked.")


@router.get("/tokens", response_model=TokenList)
async def list_tokens(here: Here, caller: User) -> TokenList:
    """One's own live tokens; the tokens themselves are not kept."""
    async with transaction(here.pool) as conn:
        rows = await accounts.list_tokens(conn, caller.username)
    return TokenList(
        tokens=[
            ListedToken(
                id=row.id,
                application=row.is_application,
                createdTime=int(row.created_at.timestamp() * 1000),
                expirationTime=int(row.expires_at.timestamp() * 1000) if row.expires_at else None,
            )
            for row in rows
        ]
    )


@router.get("/tokens/check", response_model=WhoAmI)
async def check_token(caller: User) -> WhoAmI:
    """Whether the token is good, and for what."""
    return WhoAmI(
        username=caller.username, application=caller.is_application, admin=caller.is_admin
    )


@router.post("/tokens/application", response_model=ApplicationToken)
async def make_application_token(here: Here, caller: Person, address: Address) -> ApplicationToken:
    """Make a token that does not expire, for programs."""
    async with transaction(here.pool) as conn:
        most = here.settings.application_tokens
        if await accounts.count_application_tokens(conn, caller.username) >= most:
            message = f"You have {most} application tokens, which are the most; revoke one."
            raise Rejected("InvalidParametersError", message)
        token = await here.access.make_token(conn, caller.username, None)
        entry = audit.Entry(caller.username, "token.create", caller.username, address)
        await audit.record(conn, [entry])
    return ApplicationToken(token=token)


@router.delete("/tokens/{token}", response_model=Done)
async def revoke_token(token: TokenText, here: Here, caller: User, address: Address) -> Done:
    """Revoke one of one's own tokens, by itself or by its id. An application token may revoke
    itself only.
    """
    async with transaction(here.pool) as conn:
        owner = await accounts.find_token_owner(conn, digest(token), token)
        if owner is None:
            raise Rejected("NoTokenError", "There is no such token.")
        if owner != caller.username:
            raise Rejected("ForbiddenUserError", "The token is not yours.")
        if caller.is_application and not await _is_same(here, token, caller.token):
            raise Rejected(
                "ForbiddenUserError", "An application token may revoke no token but itself."
            )
        await accounts.delete_token(conn, digest(token), token)
        entry = audit.Entry(caller.username, "token.revoke", caller.username, address)
        await audit.record(conn, [entry])
    here.access.forget_cached()
    return Done(message="The token is revoked.")


async def _is_same(here: Here, token: str, ident: str) -> bool:
    if token == ident:
        return True
    try:
        return (await here.access.caller_of(token)).token == ident
    except Rejected:
        return False
