"""Logging in and out, and tokens."""

import json
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Path, Query, Request
from fastapi.exceptions import RequestValidationError
from muster.db import transaction
from muster.errors import Rejected
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rest.api.context import Address, Here, Person, User
from rest.api.examples import LOGIN
from rest.api.router import new_router
from rest.domain.callers import check_admin
from rest.domain.times import iso
from rest.handlers.access import digest, invalid_token
from rest.store import accounts, audit

router = new_router(tag="tokens")

TokenText = Annotated[str, Path(min_length=1, max_length=200, description="A token, or its id.")]
Owner = Annotated[str | None, Query(max_length=64, description="Of another user: for admins.")]


class Login(BaseModel):
    """Who logs in. ``expiration``: how long the token lives, in seconds."""

    username: Annotated[str, Field(min_length=1, max_length=64)]
    password: Annotated[str, Field(min_length=1, max_length=256)]
    expiration: Annotated[int | None, Field(ge=60, le=7 * 86_400)] = None


class LoggedIn(BaseModel):
    """The token of a login. It can be renewed before ``expiresAt``."""

    user: str
    token: str
    admin: bool
    expiresAt: str
    hasGitHubPAT: bool = False


class Renewed(BaseModel):
    """The time at which the login's token now expires."""

    expiresAt: str


class NewApplicationToken(BaseModel):
    """What a token is for, and how long it lives, in seconds; left out: until it is revoked."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.:@/+-]{0,64}$")] = ""
    expiration: Annotated[int | None, Field(ge=60, le=10 * 366 * 86_400)] = None


class ApplicationToken(BaseModel):
    """A token of a program. It is shown this once; its id is listed."""

    token: str
    id: str
    name: str
    application: bool = True
    expiresAt: str | None


class ListedToken(BaseModel):
    """A live token, without itself. ``usedAt``: roughly its last use; null: never."""

    id: str
    name: str
    application: bool
    createdAt: str
    expiresAt: str | None
    usedAt: str | None


class TokenList(BaseModel):
    """The live tokens of a user."""

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
            "application/json": {"schema": Login.model_json_schema(), "example": LOGIN},
            "application/x-www-form-urlencoded": {
                "schema": Login.model_json_schema(),
                "example": LOGIN,
            },
        },
    }
}


@router.post("/authn/basic/login", response_model=LoggedIn, openapi_extra=_LOGIN_BODY)
@router.post("/token", response_model=LoggedIn, openapi_extra=_LOGIN_BODY, name="make_token")
async def log_in(request: Request, here: Here, address: Address) -> LoggedIn:
    """Log in with a password; as JSON or as a form."""
    login = _read_login(await request.body(), request.headers.get("content-type", ""))
    made, is_admin = await here.access.log_in(
        login.username, login.password, login.expiration, address
    )
    expires = iso(made.expires_at) or ""
    return LoggedIn(user=login.username, token=made.token, admin=is_admin, expiresAt=expires)


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
async def log_out(here: Here, caller: User, address: Address) -> Done:
    """Revoke the token that is presented."""
    async with transaction(here.pool) as conn:
        await accounts.delete_token(conn, caller.token)
        detail = {"token": caller.token}
        entry = audit.Entry(caller.username, "logout", caller.username, address, detail)
        await audit.record(conn, [entry])
    here.access.forget_cached()
    return Done(message="The token is revoked.")


@router.post("/tokens/renew", response_model=Renewed)
async def renew_token(here: Here, caller: Person, address: Address) -> Renewed:
    """Extend the login whose token is presented. 90 days after its password was given it expires,
    however often it was extended. A renewal within a minute of the last one changes nothing.
    """
    settings = here.settings
    async with transaction(here.pool) as conn:
        renewal = await accounts.renew_login(
            conn, caller.token, settings.token_life_s, settings.login_s
        )
        if renewal is None:
            raise invalid_token()
        if renewal.is_new:
            detail = {"token": caller.token}
            entry = audit.Entry(caller.username, "token.renew", caller.username, address, detail)
            await audit.record(conn, [entry])
    return Renewed(expiresAt=iso(renewal.expires_at) or "")


@router.get("/tokens", response_model=TokenList)
async def list_tokens(here: Here, caller: User, username: Owner = None) -> TokenList:
    """One's own live tokens, or, for admins, another user's; the tokens themselves are not kept."""
    owner = caller.username if username is None else username
    if owner != caller.username:
        check_admin(caller)
    async with transaction(here.pool) as conn:
        if await accounts.find_account(conn, owner) is None:
            raise Rejected("NoUserError", f"There is no user {owner[:64]}.")
        rows = await accounts.list_tokens(conn, owner)
    return TokenList(
        tokens=[
            ListedToken(
                id=row.id,
                name=row.name,
                application=row.is_application,
                createdAt=iso(row.created_at) or "",
                expiresAt=iso(row.expires_at),
                usedAt=iso(row.used_at),
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
async def create_application_token(
    here: Here,
    caller: Person,
    address: Address,
    wanted: NewApplicationToken | None = None,
) -> ApplicationToken:
    """Make a token for a program. Without an expiration it lives until it is revoked."""
    wanted = wanted or NewApplicationToken()
    async with transaction(here.pool) as conn:
        most = here.settings.application_tokens
        if await accounts.count_application_tokens(conn, caller.username) >= most:
            message = f"You have {most} application tokens, which are the most; revoke one."
            raise Rejected("InvalidParametersError", message)
        made = await here.access.make_token(
            conn,
            caller.username,
            life_s=wanted.expiration,
            name=wanted.name,
            is_application=True,
        )
        detail = {"token": made.id, "name": wanted.name}
        entry = audit.Entry(caller.username, "token.create", caller.username, address, detail)
        await audit.record(conn, [entry])
    return ApplicationToken(
        token=made.token,
        id=made.id,
        name=wanted.name,
        expiresAt=iso(made.expires_at),
    )


@router.delete("/tokens/{token}", response_model=Done)
async def revoke_token(token: TokenText, here: Here, caller: User, address: Address) -> Done:
    """Revoke a token, by itself or by its id: one's own, or, as an admin, anybody's. An application
    token may revoke itself only.
    """
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        found = await accounts.find_token(conn, digest(token), token)
        if found is None:
            raise Rejected("NoTokenError", "There is no such token.")
        ident, owner = found
        if owner != caller.username and not caller.is_admin:
            raise Rejected("ForbiddenUserError", "The token is not yours.")
        if caller.is_application and ident != caller.token:
            raise Rejected(
                "ForbiddenUserError", "An application token may revoke no token but itself."
            )
        await accounts.delete_token(conn, ident)
        entry = audit.Entry(caller.username, "token.revoke", owner, address, {"token": ident})
        await audit.record(conn, [entry])
    here.access.forget_cached()
    return Done(message="The token is revoked.")
