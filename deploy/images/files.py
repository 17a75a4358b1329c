"""A file tree in memory: what a layer of an image holds, in one order and without times."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

TIME = 315532800
"""The time of every file, 1980-01-01: older ones can't be stored in a zip, younger ones differ."""

FOLDER_MODE = 0o755


@dataclass(frozen=True)
class File:
    """A regular file."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Folder:
    """A folder, which a tree needs only for a mode of its own or because it is empty."""

    mode: int = FOLDER_MODE


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Tree = dict[str, File | Folder | Link]
"""Entries by their path without a leading slash."""


def as_tar(tree: Mapping[str, File | Folder | Link]) -> bytes:
    """The tree as a tar archive: sorted, with all parent folders, owned by root."""
    whole: Tree = dict(tree)
    for path in tree:
        for parent in PurePosixPath(path).parents:
            if parent.name:
                whole.setdefault(str(parent), Folder())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(whole):
            _add(archive, path, whole[path])
    return packed.getvalue()


def _add(archive: tarfile.TarFile, path: str, entry: File | Folder | Link) -> None:
    member = tarfile.TarInfo(path)
    member.mtime = TIME
    match entry:
        case File(content, mode):
            member.mode, member.size = mode, len(content)
            archive.addfile(member, io.BytesIO(content))
        case Folder(mode):
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        case Link(target):
            member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, target
            archive.addfile(member)


def from_folder(folder: Path, prefix: str) -> Tree:
    """The files and links below a folder, for the path `prefix` of an image."""
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = f"{prefix}/{path.relative_to(folder)}"
        if path.is_symlink():
            tree[name] = Link(str(path.readlink()))
        elif path.is_file():
            is_program = path.stat().st_mode & stat.S_IXUSR
            tree[name] = File(path.read_bytes(), 0o755 if is_program else 0o644)
    return tree


def write(tree: Mapping[str, File | Folder | Link], root: Path) -> None:
    """Lay the tree out below a folder."""
    for path in sorted(tree):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        match tree[path]:
            case File(content, mode):
                target.write_bytes(content)
                target.chmod(mode)
            case Folder():
                target.mkdir(exist_ok=True)
            case Link(to):
                target.symlink_to(to)
