"""What Python code the services need: locked distributions, and the members of the workspace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from files import File, Tree, from_folder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITE = "usr/local/lib/python3.11/dist-packages"
"""Debian's Python looks here, also in isolated mode."""

PLATFORM = "x86_64-manylinux_2_36"
MEMBERS = {
    "shared": "muster",
    "services/rest": "rest",
    "services/launcher": "launcher",
    "services/scheduler": "scheduler",
    "services/runtime-agent": "runtime_agent",
    "services/alerting": "alerting",
}
EXTRAS = {"muster-shared": ("http", "migrations")}
INSTALL_TIMEOUT_S = 540
INSTALLED_BY = ("/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json", "/uv_cache.json")


def members(root: Path) -> Tree:
    """The services' own code, each with the metadata that tells its version."""
    tree: Tree = {}
    for folder, package in MEMBERS.items():
        tree |= {
            path: entry
            for path, entry in from_folder(
                root / folder / "src" / package, f"{SITE}/{package}"
            ).items()
            if "__pycache__" not in path
        }
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        name, version = project["name"], project["version"]
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        info = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info/METADATA"
        tree[info] = File(text.encode())
    return tree


def dependencies(root: Path, uv: Path, work: Path) -> Tree:
    """The locked distributions that the services need, installed by uv from wheels."""
    requirements = work / "requirements.txt"
    requirements.write_text(_locked(root / "requirements.lock", needed(root)))
    target = work / "site"
    shutil.rmtree(target, ignore_errors=True)
    options = ["--quiet", "--target", target, "--no-deps", "--require-hashes"]
    options += ["--python", sys.executable, "--python-version", "3.11"]
    options += ["--python-platform", PLATFORM, "--only-binary", ":all:", "--link-mode", "copy"]
    done = subprocess.run(
        [uv, "pip", "install", *options, "-r", requirements],
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit("the locked distributions could not be installed")
    tree = from_folder(target, SITE)
    return {path: entry for path, entry in tree.items() if not _is_of_this_machine(path)}


def _is_of_this_machine(path: str) -> bool:
    """Whether a file records how it was installed, or serves other programs than the services."""
    below = path.removeprefix(f"{SITE}/")
    return (
        below.startswith(("bin/", ".lock"))
        or "__pycache__" in below
        or below.endswith(INSTALLED_BY)
    )


def needed(root: Path) -> set[str]:
    """The names of all distributions that the members need, also by others."""
    found: set[str] = set()
    todo: list[Requirement] = []
    for folder in MEMBERS:
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        optional = project.get("optional-dependencies", {})
        texts = list(project["dependencies"])
        for extra in EXTRAS.get(project["name"], ()):
            texts += optional[extra]
        todo += map(Requirement, texts)
    seen: set[tuple[str, str]] = set()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name.startswith("muster-"):
            continue
        found.add(name)
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += _requirements_of(name, extra)
    return found


def _requirements_of(name: str, extra: str) -> Iterable[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _locked(lock: Path, names: set[str]) -> str:
    """The lock's entries of these names. Ends the program where one is missing."""
    entries = re.split(r"(?m)^(?=[a-z0-9])", lock.read_text())
    kept = {
        canonicalize_name(entry.partition("==")[0]): entry for entry in entries if "==" in entry
    }
    if missing := names - set(kept):
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}: run `make lock`")
    return "".join(kept[name] for name in sorted(names))
