"""`muster storage`: the storages that tasks mount, and who may use them."""

from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from cli.commands.session import Output, client
from cli.output import Format, print_facts, print_json, print_line, print_table

StorageName = Annotated[str, Parameter(help="A storage's name, as `muster storage` has it.")]

app = App(
    name="storage",
    help="Storages that jobs may mount: list, show, set, remove.",
    default_parameter=Parameter(negative=()),
)


@app.default
def storage(*, output: Output = Format.TABLE) -> None:
    """The same as list."""
    list_(output=output)


@app.command(name="list")
def list_(*, output: Output = Format.TABLE) -> None:
    """The storages that you may use; for admins all."""
    found = client().get_pages("/storages", "storages")
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("STORAGE", "DEFAULT", "READ-ONLY", "WHERE", "FOR"),
        [
            (
                each["name"],
                "yes" if each["default"] else "",
                "yes" if each["readOnly"] else "",
                _where(each),
                _who(each),
            )
            for each in found
        ],
    )


@app.command
def show(storage: StorageName, *, output: Output = Format.TABLE) -> None:
    """One storage."""
    found = client().get(_path(storage)).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_facts(
        {
            "Storage": found["name"],
            "Claim": found["claim"] or "none",
            "Folder of nodes": found["hostPath"] or "none",
            "Sub-path": found["subPath"] or "none",
            "Read-only": "yes" if found["readOnly"] else "no",
            "Default": "yes" if found["default"] else "no",
            "For": _who(found),
        }
    )


@app.command(name="set")
def set_(  # noqa: PLR0913 - these are the command's options
    storage: Annotated[str, Parameter(help="The storage's name; a new one makes a storage.")],
    *,
    claim: Annotated[
        str | None,
        Parameter(help="Its PersistentVolumeClaim in the job namespaces, for Kubernetes nodes."),
    ] = None,
    host_path: Annotated[str | None, Parameter(help="Its folder on other nodes.")] = None,
    sub_path: Annotated[
        str,
        Parameter(
            help="Which folder of it tasks see; {user} and {virtualCluster} stand for the job's."
        ),
    ] = "",
    read_only: Annotated[bool, Parameter(help="Tasks can't write to it.")] = False,
    default: Annotated[
        bool, Parameter(help="Job files with `extras.storages: []` mount it.")
    ] = False,
    user: Annotated[
        list[str] | None,
        Parameter(help="Who may use it, once for each user; `*`: everybody.", negative=()),
    ] = None,
    virtual_cluster: Annotated[
        list[str] | None,
        Parameter(help="All jobs there may use it; once for each.", negative=()),
    ] = None,
) -> None:
    """Set all of a storage (for admins). Without --user and --virtual-cluster only admins may use
    it.
    """
    wanted = {
        "claim": claim,
        "hostPath": host_path,
        "subPath": sub_path,
        "readOnly": read_only,
        "default": default,
        "users": user or [],
        "virtualClusters": virtual_cluster or [],
    }
    print_line(client().send("PUT", _path(storage), wanted).json()["message"])


@app.command
def remove(storage: StorageName) -> None:
    """Remove a storage from what jobs may mount (for admins). Its data stay."""
    print_line(client().call("DELETE", f"/api/v2{_path(storage)}").json()["message"])


def _path(storage: str) -> str:
    return f"/storages/{quote(storage, safe='')}"


def _where(storage: dict[str, Any]) -> str:
    places = [("claim", storage["claim"]), ("folder", storage["hostPath"])]
    return ", ".join(f"{kind} {place}" for kind, place in places if place)


def _who(storage: dict[str, Any]) -> str:
    if "*" in storage["users"]:
        return "everybody"
    names = [*storage["users"], *(f"jobs in {name}" for name in storage["virtualClusters"])]
    return ", ".join(names) or "admins"
