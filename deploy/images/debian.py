"""Debian packages as a file tree, without a root user, a chroot or maintainer scripts.

apt downloads and authenticates them from the sources of this machine. `packages.lock` pins each by
version and digest.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from files import File, Folder, Link, Tree

DOWNLOAD_TIMEOUT_S = 300
MERGED = ("bin", "lib", "lib64", "sbin")
"""Folders that are links into /usr; packages still name files by them."""

UNWANTED = (
    "usr/share/bash-completion/",
    "usr/share/bug/",
    "usr/share/gcc/",
    "usr/share/gdb/",
    "usr/share/initramfs-tools/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/lib/x86_64-linux-gnu/gconv/",
    "usr/lib/x86_64-linux-gnu/audit/",
    "etc/update-motd.d/",
)


@dataclass(frozen=True)
class Package:
    """A line of the lock."""

    name: str
    version: str
    sha256: str


def read_lock(lock: Path) -> list[Package]:
    """The pinned packages."""
    lines = lock.read_text().splitlines()
    return [Package(*line.split()) for line in lines if line and not line.startswith("#")]


def make_lock(names: Iterable[str], folder: Path) -> str:
    """The lock with the versions that apt would install now."""
    lines = []
    for name in names:
        shown = _run(["apt-cache", "show", "--no-all-versions", name], "run `apt-get update` first")
        fields = dict(line.split(": ", 1) for line in shown.splitlines() if ": " in line)
        package = Package(name, fields["Version"], fields["SHA256"])
        fetch(package, folder)
        lines.append(f"{package.name} {package.version} {package.sha256}")
    return "".join(f"{line}\n" for line in lines)


def fetch(package: Package, folder: Path) -> Path:
    """The package's file, downloaded unless it is there. Ends the program where it differs."""
    target = folder / f"{package.sha256}.deb"
    if not target.exists():
        into = folder / f"{package.name}.downloading"
        into.mkdir(parents=True, exist_ok=True)
        _run(
            ["apt-get", "-q", "download", f"{package.name}={package.version}"],
            "the images are built from Debian 12's packages: run `apt-get update`; where Debian has"
            " replaced this version, run `make images-lock`",
            into,
        )
        (downloaded,) = into.glob("*.deb")
        downloaded.rename(target)
        into.rmdir()
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != package.sha256:
        sys.exit(
            f"{package.name} {package.version} has the SHA-256 {found}: run `make images-lock`"
        )
    return target


def unpack(package: Path) -> Tree:
    """The files of a package, without pages for people but with its licence."""
    tree: Tree = {}
    content = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = _merged(member.name.removeprefix("./"))
            is_page = path.startswith("usr/share/doc/") and not path.endswith("/copyright")
            if not path or is_page or path.startswith(UNWANTED):
                continue
            if member.isdir():
                if member.mode != Folder().mode:
                    tree[path] = Folder(member.mode)
            elif member.issym():
                tree[path] = Link(member.linkname)
            elif member.islnk():
                tree[path] = tree[_merged(member.linkname.removeprefix("./"))]
            else:
                extracted = archive.extractfile(member)
                assert extracted is not None
                tree[path] = File(extracted.read(), member.mode)
    return tree


def _merged(path: str) -> str:
    first, _, rest = path.rstrip("/").partition("/")
    if first not in MERGED:
        return path.rstrip("/")
    return f"usr/{first}/{rest}" if rest else ""


def _run(command: list[str], fix: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        sys.exit(f"{command[0]} is missing: build on Debian 12, or use deploy/images/Containerfile")
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}\n{fix}")
    return done.stdout
