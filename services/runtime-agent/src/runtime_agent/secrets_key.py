"""The agent's own key pair, and what only it opens: the secrets of its pods.

They are opened in memory, each time that they are needed; the journal keeps the sealed text.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.contracts.secrets import PodSecrets, PullCredentials
from muster.errors import Broken
from muster.references import fill_in
from muster.sealing import make_private_key, public_key_of, unseal
from pydantic import ValidationError

from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Pod
from runtime_agent.supervisor.records import flush_directory

FILE = "secrets-key"
MASK = "******"


@dataclass(frozen=True)
class Opened:
    """A pod's command with its secrets filled in, and who pulls its image. ``hidden``: the texts
    that nobody else may read.
    """

    command: str = field(repr=False)
    pull: PullCredentials | None = None
    hidden: tuple[str, ...] = field(default=(), repr=False)


class SecretsKey:
    """The key pair in the agent's home, made at its first start. Raises Broken where the file is
    none, or can't be made.
    """

    def __init__(self, home: Path) -> None:
        file = home / FILE
        try:
            self._private = file.read_text().strip() if file.exists() else _make(file)
            self.public = public_key_of(self._private)
        except (OSError, ValueError) as error:
            raise Broken(
                f"the key in {file} can't be used ({error}); remove it to have a new one made:"
                " pods with secrets that have not begun yet are then retried"
            ) from error

    def open(self, pod: Pod) -> Opened:
        """What a pod needs to begin. Raises OSError where its secrets can't be opened."""
        assert pod.run is not None
        if pod.run.secrets is None:
            return Opened(pod.run.command)
        try:
            secrets = PodSecrets.model_validate_json(unseal(pod.run.secrets, [self._private]))
        except ValidationError:  # its text has the input
            raise OSError("the pod's secrets are of an unknown form: upgrade the agent") from None
        except ValueError as error:
            raise OSError(f"the pod's secrets can't be opened: {error}") from None
        if secrets.pod != pod.pod:
            raise OSError("the pod's secrets are those of another pod")
        command = fill_in(pod.run.command, secrets.values)
        return Opened(command, secrets.pull, tuple(_hidden(secrets)))

    def masked(self, pod: Pod, ending: Ending) -> Ending:
        """The end of a pod without its secrets: what it wrote last, and what failed, is published.
        Where they can't be opened any more, its last lines are left out.
        """
        if pod.run is None or pod.run.secrets is None:
            return ending
        try:
            hidden = self.open(pod).hidden
        except OSError:
            return replace(ending, log_tail=())
        return replace(
            ending,
            start_error=None if ending.start_error is None else _mask(ending.start_error, hidden),
            detail=_mask(ending.detail, hidden),
            log_tail=tuple(_mask(line, hidden) for line in ending.log_tail),
        )


def _make(file: Path) -> str:
    key = make_private_key()
    fresh = file.with_name(f".{file.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as writer:
        writer.write(key)
        writer.flush()
        os.fsync(descriptor)
    fresh.replace(file)
    flush_directory(file.parent)
    return key


def _hidden(secrets: PodSecrets) -> list[str]:
    """The longest first, as one may hold another. Programs write lines, so each line of a secret is
    one as well.
    """
    password = "" if secrets.pull is None else secrets.pull.password
    texts = {
        text.strip() for value in (*secrets.values.values(), password) for text in _parts(value)
    }
    return sorted(texts - {""}, key=len, reverse=True)


def _parts(value: str) -> Iterator[str]:
    yield value
    yield from value.splitlines()


def _mask(text: str, hidden: tuple[str, ...]) -> str:
    for each in hidden:
        text = text.replace(each, MASK)
    return text
