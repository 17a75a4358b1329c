"""Data prerequisites that lie in a storage: ``storage://imagenet/train``. The job mounts that
storage read-only, and references become the path there. Other uris are plain text, as in OpenPAI.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from muster.contracts.storages import FOLDER, STORAGE_NAME, usual_mount_path
from muster.errors import Problem
from muster.protocol.document import Node
from muster.protocol.problems import join_path
from muster.protocol.requests import STORAGES, NamedStorage
from muster.protocol.tree import Path, fields, items, look_up, problem_at, string

SCHEME = "storage://"

_URI = re.compile(rf"{SCHEME}(?P<name>{STORAGE_NAME[1:-1]})(?P<path>(/{FOLDER})*)/?")


def check_data(root: Node) -> Iterator[Problem]:
    """Uris that name no path in a storage."""
    for path, node in data_in_storages(root):
        if _URI.fullmatch(node.value) is None:
            yield problem_at(root, path, f"is no path in a storage; write `{SCHEME}NAME/folder`")


def data_in_storages(root: Node) -> Iterator[tuple[Path, Node]]:
    """The uris in storages of all data that a task role names, with their places."""
    used = {string(role, "data") for role in fields(root, "taskRoles").values()}
    for index, entry in enumerate(items(root, "prerequisites")):
        if string(entry, "type") == "data" and string(entry, "name") in used:
            for at, node in enumerate(items(entry, "uri")):
                if _is_in_storage(node):
                    yield ("prerequisites", index, "uri", at), node


def storages_of_data(root: Node) -> tuple[NamedStorage, ...]:
    """The storages that data lie in and `extras.storages` does not name."""
    found: dict[str, NamedStorage] = {}
    named = _mount_paths(root)
    for path, node in data_in_storages(root):
        match = _URI.fullmatch(node.value)
        if match is not None and (name := match["name"]) not in named:
            where = usual_mount_path(name)
            place = NamedStorage(name, where, join_path(path), node.line, node.column, is_data=True)
            found.setdefault(name, place)
    return tuple(found.values())


def as_mounted(prerequisite: Node, root: Node) -> Node:
    """The prerequisite as commands refer to it: with paths of tasks in place of storages."""
    uris = look_up(prerequisite, ("uri",))
    if uris is None or not any(map(_is_in_storage, items(uris))):
        return prerequisite
    named = _mount_paths(root)
    entries = [
        replace(node, text=_in_task(node.value, named)) if _is_in_storage(node) else node
        for node in items(uris)
    ]
    return replace(
        prerequisite,
        children={**fields(prerequisite), "uri": replace(uris, children=entries)},
    )


def _is_in_storage(node: Node) -> bool:
    return isinstance(node.value, str) and node.value.startswith(SCHEME)


def _mount_paths(root: Node) -> Mapping[str, str]:
    """Where tasks see the storages that `extras.storages` names."""
    found: dict[str, str] = {}
    for use in items(root, *STORAGES):
        name = string(use, "name")
        found.setdefault(name, string(use, "mountPath") or usual_mount_path(name))
    return found


def _in_task(uri: str, named: Mapping[str, str]) -> str:
    match = _URI.fullmatch(uri)
    if match is None:
        return uri
    return named.get(match["name"], usual_mount_path(match["name"])) + match["path"]
