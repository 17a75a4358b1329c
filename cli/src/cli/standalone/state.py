"""What one start of `muster up` leaves for the next: ports and secrets, in state.json."""

import fcntl
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from muster.process import make_folder_private

from cli.embedded.process import EmbeddedServerError, free_port, is_port_free
from cli.home import read_json, write_json

FILE = "state.json"


class HomeInUseError(RuntimeError):
    """Another `muster up` runs over the same MUSTER_HOME."""


@contextmanager
def owning(home: Path) -> Iterator[None]:
    """Own the folder while in here; a kill of this process frees it.

    Raises HomeInUseError where another process owns it, OSError where it can't be used.
    """
    make_folder_private(home)
    with (home / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeInUseError(
                f"Muster already runs over {home}: use it, stop it, or set another MUSTER_HOME."
            ) from None
        yield


def make_secret() -> str:
    """A new secret of no special form."""
    return secrets.token_urlsafe(32)


class HomeState:
    """The remembered ports, choices and secrets of one MUSTER_HOME."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        content = read_json(self._path)
        self._ports: dict[str, int] = dict(content.get("ports", {}))
        self._secrets: dict[str, str] = dict(content.get("secrets", {}))
        self._choices: dict[str, str] = dict(content.get("choices", {}))
        self._done: list[str] = list(content.get("done", []))

    def choice(self, name: str, chosen: str | None, default: str) -> str:
        """What a person has chosen, now or at an earlier start; else the default."""
        self._choices[name] = chosen or self._choices.get(name, default)
        return self._choices[name]

    def last_port(self, name: str) -> int | None:
        """The port of the last start."""
        return self._ports.get(name)

    def fixed_port(self, name: str, wanted: int, variable: str) -> int:
        """A port that people know; EmbeddedServerError if another process holds it."""
        if not is_port_free(wanted):
            raise EmbeddedServerError(
                f"Port {wanted}, wanted for {name}, is taken: end what listens there, "
                f"or choose another one by {variable}."
            )
        self._ports[name] = wanted
        return wanted

    def port(self, name: str, preferred: int | None = None) -> int:
        """The same port as last time if it is free, else the preferred one, else any."""
        for candidate in (self._ports.get(name), preferred):
            others = {port for other, port in self._ports.items() if other != name}
            if candidate and candidate not in others and is_port_free(candidate):
                self._ports[name] = candidate
                return candidate
        self._ports[name] = free_port()
        return self._ports[name]

    def secret(self, name: str, make: Callable[[], str] = make_secret) -> str:
        """A secret of this installation, made at its first use."""
        if name not in self._secrets:
            self._secrets[name] = make()
        return self._secrets[name]

    def keep_secret(self, name: str, value: str) -> None:
        """Remember a secret that was made elsewhere."""
        self._secrets[name] = value

    def is_done(self, step: str) -> bool:
        """Whether a step of the first start was completed."""
        return step in self._done

    def mark_done(self, step: str) -> None:
        """Remember that a step of the first start is completed."""
        if step not in self._done:
            self._done.append(step)
        self.save()

    def save(self) -> None:
        """Write everything, whole or not at all."""
        content: Mapping[str, object] = {
            "ports": self._ports,
            "secrets": self._secrets,
            "choices": self._choices,
            "done": self._done,
        }
        write_json(self._path, content)


def database_url(home: Path) -> str | None:
    """The address of the database that `muster up` keeps in this folder; None where it has none."""
    port = read_json(home / FILE).get("ports", {}).get("database")
    try:
        password = (home / "postgres/password").read_text().strip()
    except FileNotFoundError:
        return None
    return f"postgresql://muster:{password}@127.0.0.1:{port}/muster"
