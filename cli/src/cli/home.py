"""MUSTER_HOME: the one folder in which a machine's own Muster keeps everything.

Nothing outside it is written. It is `MUSTER_HOME` if set; `.muster` in the checkout when the
command runs from one of this user; else `muster` in the user's state folder (XDG_STATE_HOME, by
default ~/.local/state). What is secret in it is readable by its user alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT_MARK = "deploy"  # beside cli/ in a checkout, never beside an installed package
PRIVATE_FILE = 0o600


def find_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where MUSTER_HOME is; it need not exist yet."""
    if chosen := environment.get("MUSTER_HOME"):
        return Path(chosen).expanduser().absolute()
    checkout = checkout_root()
    if checkout is not None and os.access(checkout, os.W_OK):
        return checkout / ".muster"
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(state) / "muster"


def checkout_root() -> Path | None:
    """The checkout from which this command runs, if it runs from one."""
    root = Path(__file__).resolve().parents[3]
    return (
        root if (root / CHECKOUT_MARK).is_dir() and (root / "cli/pyproject.toml").exists() else None
    )


class HomeError(ValueError):
    """A file of MUSTER_HOME can't be used; the message has its name and the fix."""


@dataclass(frozen=True)
class Credentials:
    """REST's address and the user's token. `token` is empty before a login; `user` also where the
    environment has the token: only the server knows its user. From `renew_at` on (seconds since
    1970) a login must be renewed; 0: the token is no login's.
    """

    url: str
    token: str = ""
    user: str = ""
    renew_at: float = 0


def read_credentials(home: Path, environment: Mapping[str, str] = os.environ) -> Credentials:
    """What the last login (or `muster up`) left, overridden by MUSTER_URL and MUSTER_TOKEN."""
    stored = read_json(home / "credentials.json")
    port = environment.get("MUSTER_PORT", "8080")
    asked = environment.get("MUSTER_URL", "").rstrip("/")
    url = asked or stored.get("url") or f"http://127.0.0.1:{port}"
    if given := environment.get("MUSTER_TOKEN"):
        return Credentials(url, given)
    # A token is sent only to the server that gave it.
    if url != stored.get("url"):
        return Credentials(url, "", stored.get("user", ""))
    return Credentials(
        url, stored.get("token", ""), stored.get("user", ""), stored.get("renewAt", 0)
    )


def write_credentials(home: Path, credentials: Credentials) -> None:
    """Keep a login for the commands that follow."""
    content = {
        "url": credentials.url,
        "token": credentials.token,
        "user": credentials.user,
        "renewAt": credentials.renew_at,
    }
    write_json(home / "credentials.json", content)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none. Raises HomeError."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HomeError(f"{path} can't be read ({error.strerror}): set MUSTER_HOME.") from error
    except ValueError as error:
        raise HomeError(f"{path} is not valid JSON ({error}): fix or remove it.") from error
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a private JSON file in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, json.dumps(content, indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace a file that is for this user alone: a kill or a full disk leaves the old one or the
    new one, whole.
    """
    making = path.with_name(f".{path.name}.{os.getpid()}")
    making.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise
