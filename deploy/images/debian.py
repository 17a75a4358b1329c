"""Debian packages as a file tree, without a root user, a chroot or maintainer scripts.

apt downloads and authenticates them from the sources of this machine. Its lists of packages are
its own here, as a machine's may be old or missing. `packages.lock` pins each package by version and
digest.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from files import File, Folder, Link, Tree, write

DOWNLOAD_TIMEOUT_S = 300
UNKNOWN = (
    "the images are built from Debian 12's packages; where Debian has replaced this version, run"
    " `make images-lock`"
)
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
    _update(folder)
    lines = []
    for name in names:
        shown = _run([*_apt("apt-cache", folder), "show", "--no-all-versions", name], UNKNOWN)
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
        command = [*_apt("apt-get", folder), "download", f"{package.name}={package.version}"]
        if not _succeeds(command, into):
            _update(folder)
            _run(command, UNKNOWN, into)
        (downloaded,) = into.glob("*.deb")
        downloaded.rename(target)
        into.rmdir()
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != package.sha256:
        sys.exit(
            f"{package.name} {package.version} has the SHA-256 {found}: run `make images-lock`"
        )
    return target


def unpacked(lock: Path, names: Collection[str], folder: Path) -> Tree:
    """The files of some packages of a lock."""
    tree: Tree = {}
    for package in read_lock(lock):
        if package.name in names:
            tree |= unpack(fetch(package, folder))
    return tree


def laid_out(lock: Path, cache: Path) -> Path:
    """The folder with a lock's packages, fetched and unpacked unless it is there."""
    place = place_of(lock, cache)
    if place.exists():
        return place
    downloads = cache / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    for package in read_lock(lock):
        write(unpack(fetch(package, downloads)), unfinished)
    unfinished.rename(place)
    return place


def place_of(lock: Path, cache: Path) -> Path:
    """Where `laid_out` puts a lock's packages."""
    return cache / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]


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


def _apt(program: str, folder: Path) -> list[str]:
    """apt with its state in a folder; a user who is not root may run it."""
    place = folder.absolute() / "apt"
    for each in ("lists/partial", "cache/archives/partial"):
        (place / each).mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State::Lists={place}/lists", f"Dir::Cache={place}/cache"]
    options.append("APT::Sandbox::User=")
    return [program, "-qq", *(word for each in options for word in ("-o", each))]


def _update(folder: Path) -> None:
    _run([*_apt("apt-get", folder), "update"], "the machine's sources of packages can't be read")


def _succeeds(command: list[str], folder: Path) -> bool:
    return _tried(command, folder).returncode == 0


def _tried(command: list[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        sys.exit(f"{command[0]} is missing: build on Debian 12, or use deploy/images/Containerfile")


def _run(command: list[str], fix: str, folder: Path | None = None) -> str:
    done = _tried(command, folder)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}\n{fix}")
    return done.stdout
