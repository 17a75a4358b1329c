"""Storages that tasks mount."""

from typing import Annotated, Any, Self

from fastapi import Path, Query
from fastapi.responses import JSONResponse, Response
from muster.contracts.storages import (
    ABSOLUTE_PATH,
    CLAIM_CHARACTERS,
    FOLDER,
    PATH_CHARACTERS,
    STORAGE_NAME,
)
from muster.db import transaction
from muster.errors import Rejected, Transient
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rest.api.context import Address, Admin, Context, Here, User
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.tokens import Done
from rest.domain.callers import USERNAME, Caller
from rest.domain.storages import (
    EVERYBODY,
    USER,
    VIRTUAL_CLUSTER,
    Storage,
    may_use,
    unknown_hints,
)
from rest.store import accounts, audit, storages

router = new_router("/storages", tag="storages")

_PLACEHOLDERS = r"\{user\}|\{virtualCluster\}"
_FOLDER = rf"({FOLDER}|{_PLACEHOLDERS})"

NamedInPath = Annotated[str, Path(max_length=63, description="The storage.", examples=["home"])]
NewName = Annotated[
    str, Path(pattern=STORAGE_NAME, description="The storage's name.", examples=["home"])
]


class StorageFields(BaseModel):
    """A storage. Kubernetes nodes find it in the PersistentVolumeClaim ``claim`` of the job
    namespaces, other nodes in their folder ``hostPath``; it has one or both. Tasks see its folder
    ``subPath``, in which `{user}` and `{virtualCluster}` stand for those of the job. ``users`` may
    use it (`*`: everybody), and so may all jobs in ``virtualClusters``; admins always may.
    ``default``: job files with `extras.storages: []` mount it.
    """

    model_config = ConfigDict(extra="forbid")

    claim: Annotated[
        str | None,
        Field(max_length=CLAIM_CHARACTERS, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    ] = None
    hostPath: Annotated[str | None, Field(max_length=PATH_CHARACTERS, pattern=ABSOLUTE_PATH)] = None
    subPath: Annotated[
        str, Field(max_length=PATH_CHARACTERS, pattern=rf"^({_FOLDER}(/{_FOLDER})*)?$")
    ] = ""
    readOnly: bool = False
    default: bool = False
    users: Annotated[
        list[Annotated[str, Field(pattern=rf"{USERNAME}|^\*$")]], Field(max_length=10_000)
    ] = []
    virtualClusters: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,255}$")]], Field(max_length=1000)
    ] = []


class NewStorage(StorageFields):
    """What a storage shall be. What is left out is as if it had never been set."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.claim is None and self.hostPath is None:
            raise ValueError("names neither a claim nor a hostPath; give one or both")
        if any(self.subPath.count(each) > 1 for each in (USER, VIRTUAL_CLUSTER)):
            raise ValueError("has a placeholder twice in subPath; name it once")
        return self


class ShownStorage(StorageFields):
    """A storage with its name."""

    name: str


class StoragePage(BaseModel):
    """A page of the storages that the caller may use, by name, and how many there are."""

    storages: list[ShownStorage]
    total: int


def _shown(storage: Storage) -> dict[str, Any]:
    return {
        "name": storage.name,
        "claim": storage.claim,
        "hostPath": storage.host_path,
        "subPath": storage.sub_path,
        "readOnly": storage.is_read_only,
        "default": storage.is_default,
        "users": storage.users,
        "virtualClusters": storage.virtual_clusters,
    }


async def _usable(here: Context, caller: Caller) -> list[Storage]:
    found = await storages.read(here.pool)
    return [each for each in found if may_use(each, caller, caller.virtual_clusters)]


@router.get("", response_model=StoragePage)
async def list_storages(
    here: Here,
    caller: User,
    page: Paging,
    default: Annotated[bool, Query(description="Only the default ones.")] = False,
) -> Response:
    """The storages that the caller may use in some virtual cluster; for admins all, by name."""
    found = [each for each in await _usable(here, caller) if each.is_default or not default]
    shown = [_shown(each) for each in found[page.offset : page.offset + page.limit]]
    return JSONResponse({"storages": shown, "total": len(found)})


@router.get("/{name}", response_model=ShownStorage)
async def get_storage(name: NamedInPath, here: Here, caller: User) -> Response:
    """One of these storages."""
    for each in await _usable(here, caller):
        if each.name == name:
            return JSONResponse(_shown(each))
    raise _no_storage(name)


@router.put("/{name}", status_code=201, response_model=Done)
async def set_storage(
    name: NewName, wanted: NewStorage, here: Here, caller: Admin, address: Address
) -> Done:
    """Make a storage, or set all of it anew. Jobs that were submitted before keep what they had."""
    storage = Storage(
        name=name,
        claim=wanted.claim,
        host_path=wanted.hostPath,
        sub_path=wanted.subPath,
        is_read_only=wanted.readOnly,
        is_default=wanted.default,
        users=wanted.users,
        virtual_clusters=wanted.virtualClusters,
    )
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        await storages.put(conn, storage)
        entry = audit.Entry(caller.username, "storage.set", name, address, wanted.model_dump())
        await audit.record(conn, [entry])
    said = [f"The storage {name} is set."]
    if not (wanted.users or wanted.virtualClusters):
        said.append("Only admins may use it.")
    said += await _unknown(here, wanted)
    if wanted.claim is not None:
        said += await _of_claim(here, wanted.claim)
    elif here.settings.kube_api_url is not None:
        said.append("It has no claim, so tasks on Kubernetes nodes can't mount it.")
    return Done(message=" ".join(said))


async def _unknown(here: Context, wanted: NewStorage) -> list[str]:
    """Who is to use the storage and does not exist; they may be made later."""
    known = None
    for name in wanted.virtualClusters:
        known = await here.virtual_clusters.having(name)
    users = await accounts.without_account(here.pool, set(wanted.users) - {EVERYBODY})
    clusters = None if known is None else known.virtual_clusters
    return unknown_hints(users, wanted.virtualClusters, clusters)


async def _of_claim(here: Context, claim: str) -> list[str]:
    """Why jobs that use the claim are refused now, or do not start on every node."""
    found: list[str | None] = []
    for namespace in (here.settings.kube_namespace, here.settings.kube_host_namespace):
        try:
            found.append(await here.claims.problem(claim, namespace))
        except Transient as error:
            return [str(error)]
    return list(filter(None, found))


@router.delete("/{name}", response_model=Done)
async def remove_storage(name: NamedInPath, here: Here, caller: Admin, address: Address) -> Done:
    """Remove a storage from what jobs may name. Its data stay, and so does what earlier jobs
    mount.
    """
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        if not await storages.remove(conn, name):
            raise _no_storage(name)
        await audit.record(conn, [audit.Entry(caller.username, "storage.remove", name, address)])
    return Done(message=f"The storage {name} is removed. Its data stay.")


def _no_storage(name: str) -> Rejected:
    return Rejected("NoStorageError", f"There is no storage {name[:63]} that you may use.")
