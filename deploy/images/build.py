"""Builds Muster's two images as OCI archives, without a container runtime: ``make images``.

``muster`` runs every service: Python of Debian with the libraries that it needs, the locked
distributions, the services' code. It has no shell. ``muster-step`` copies tini, busybox and the
script ``begin`` into the volume of a job's pod. The same commit and locks give the same digests.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import debian
import python_packages
from files import File, Folder, Link, Tree, from_folder, write
from oci import Image, archive
from step import COPY, LOCK, PACKAGES, step_files

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OUT = ROOT / ".images"
REGISTRY = "localhost"
USER = "65532:65532"

PYTHON = "/usr/bin/python3.11"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
COMPILE_TIMEOUT_S = 540


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="pin the packages that apt has now")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder for the archives")
    arguments = parser.parse_args()
    cache = OUT / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    if arguments.lock:
        names = [package.name for package in debian.read_lock(LOCK)]
        comment = "# Debian 12 packages of the images, by `make images-lock`: name version sha256\n"
        LOCK.write_text(comment + debian.make_lock(names, cache))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for image in (_step(cache), _services(cache)):
        content, digest = archive(image)
        name = image.name.rpartition("/")[2].partition(":")[0]
        path = arguments.out / f"{name}.tar"
        path.write_bytes(content)
        print(f"{path}: {image.name}@{digest} ({len(content) / 2**20:.1f} MiB)")


def _step(cache: Path) -> Image:
    return Image(
        name=f"{REGISTRY}/muster-step:{_version()}",
        created=_created(),
        layers=[step_files(cache)],
        entrypoint=COPY,
        user=USER,
    )


def _services(cache: Path) -> Image:
    names = [package.name for package in debian.read_lock(LOCK)]
    own = [name for name in names if name not in PACKAGES]
    base = debian.unpacked(LOCK, own, cache) | _made_here()
    base[AUTHORITIES] = _authorities(base)
    with TemporaryDirectory(dir=OUT) as work:
        uv = ROOT / ".uv/bin/uv"
        needed = python_packages.dependencies(ROOT, uv, Path(work))
        code = python_packages.members(ROOT)
        layers = _compiled([base, needed, code], Path(work) / "root")
    return Image(
        name=f"{REGISTRY}/muster:{_version()}",
        created=_created(),
        layers=layers,
        entrypoint=[PYTHON, "-P", "-m"],
        user=USER,
        environment={
            "PATH": "/usr/local/bin:/usr/bin",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )


def _made_here() -> Tree:
    """What maintainer scripts and the installer of Debian would make."""
    people = (
        "root:x:0:0::/root:/none\nmuster:x:65532:65532::/:/none\nnobody:x:65534:65534::/:/none\n"
    )
    groups = "root:x:0:\nmuster:x:65532:\nnogroup:x:65534:\n"
    return {
        **{name: Link(f"usr/{name}") for name in debian.MERGED},
        "usr/lib64/ld-linux-x86-64.so.2": Link("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        "usr/bin/python3": Link("python3.11"),
        "usr/lib/ssl/cert.pem": Link(f"/{AUTHORITIES}"),
        "etc/passwd": File(people.encode()),
        "etc/group": File(groups.encode()),
        "etc/nsswitch.conf": File(b"passwd: files\ngroup: files\nhosts: files dns\n"),
        "var/run": Link("/run"),
        "run/secrets": Folder(),
        "tmp": Folder(0o1777),
    }


def _authorities(base: Tree) -> File:
    """The certificates of all public authorities in one file."""
    found = [
        entry.content.strip() + b"\n"
        for path, entry in sorted(base.items())
        if path.startswith("usr/share/ca-certificates/") and isinstance(entry, File)
    ]
    return File(b"".join(found))


def _compiled(layers: Sequence[Tree], root: Path) -> list[Tree]:
    """The layers, each with the bytecode of its sources: containers can't write it. The image's own
    Python compiles it.
    """
    for tree in layers:
        write({path: entry for path, entry in tree.items() if path not in debian.MERGED}, root)
    python = [root / LOADER, "--library-path", root / LIBRARIES, root / PYTHON[1:]]
    options = ["-q", "-f", "-j1", "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/"]
    folders = [root / "usr/lib/python3.11", root / python_packages.SITE]
    done = subprocess.run(
        [*python, "-S", "-m", "compileall", *options, *folders],
        env={
            "PYTHONHOME": str(root / "usr"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",  # what it imports itself has times
            "LANG": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"the image's Python could not compile: {(done.stdout + done.stderr)[-1000:]}")
    bytecode = {p: e for p, e in from_folder(root / "usr", "usr").items() if p.endswith(".pyc")}
    return [tree | _bytecode_of(tree, bytecode) for tree in layers]


def _bytecode_of(tree: Tree, bytecode: Mapping[str, File | Folder | Link]) -> Tree:
    found: Tree = {}
    for path, entry in bytecode.items():
        folder, _, name = path.rpartition("/__pycache__/")
        if f"{folder}/{name.partition('.')[0]}.py" in tree:
            found[path] = entry
    return found


def _version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def _created() -> str:
    """The time of the commit: the same for every build of it."""
    shown = subprocess.run(
        ["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=True
    ).stdout
    made = datetime.datetime.fromtimestamp(int(shown), datetime.UTC)
    return made.strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main()
