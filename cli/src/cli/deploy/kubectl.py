"""The user's kubectl: every request to the cluster goes through it, with its log-in and context."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import Parameter

from cli.client import CommandError, Exit

Json = dict[str, Any]

AWAY = ("Unable to connect to the server", "The connection to the server")
BUSY = ("etcdserver: ", "(ServiceUnavailable)")
OTHER_CLUSTER = "Start the cluster, or name another one by --context or --kubeconfig."
FIXES = {
    **dict.fromkeys(AWAY, OTHER_CLUSTER),
    "(Unauthorized)": "Renew your log-in to the cluster: `kubectl get nodes` has to work.",
    "is forbidden: User ": "Use a context with the role cluster-admin.",
    "is forbidden: exceeded quota": "Raise this quota. Then go on.",
    "updates to statefulset spec": (
        "Delete the StatefulSet, and then go on. Its data stay: to change its volume too, delete"
        " its claim with all data."
    ),
    "conflict with": "Set these fields to the same values in your overlay. Then go on.",
}
"""What to do, by what kubectl prints."""
LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.")
"""How a line of kubectl's own log begins: it repeats what the error says."""
TIMEOUT_S = 120
"""No single request takes longer. Waits ask again instead."""


@Parameter(name="*")
@dataclass(frozen=True)
class Connection:
    """Which kubectl, and which cluster."""

    kubectl: Annotated[str, Parameter(help="The program kubectl, by name or path.")] = "kubectl"
    context: Annotated[str | None, Parameter(help="As of kubectl: a context of its file.")] = None
    kubeconfig: Annotated[Path | None, Parameter(help="As of kubectl: its file.")] = None


class Kubectl:
    """One cluster. Every method raises CommandError with kubectl's own words."""

    def __init__(self, connection: Connection) -> None:
        program = shutil.which(connection.kubectl)
        if program is None:
            raise CommandError(
                Exit.USAGE,
                f"There is no program {connection.kubectl}: install kubectl 1.32 or later,"
                " or name it by --kubectl.",
            )
        self._command = [program]
        if connection.context is not None:
            self._command.append(f"--context={connection.context}")
        if connection.kubeconfig is not None:
            self._command.append(f"--kubeconfig={connection.kubeconfig}")

    def run(self, *words: str, objects: Sequence[Json] | None = None) -> str:
        """What it prints. `objects` is its standard input, as one List."""
        given = None if objects is None else json.dumps(_list(objects))
        try:
            done = subprocess.run(
                [*self._command, *words],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(
                Exit.UNREACHABLE,
                f"kubectl {words[0]} did not end within {TIMEOUT_S} s: is the API server there?",
            ) from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            first, *more = [each for each in lines if not LOGGED.match(each)] or lines
            away = any(each in done.stderr for each in (*AWAY, *BUSY))
            code = Exit.UNREACHABLE if away else Exit.REFUSED
            fix = "".join(f" {text}" for sign, text in FIXES.items() if sign in done.stderr)
            raise CommandError(code, f"kubectl {words[0]}: {first}{fix}", tuple(more))
        return done.stdout

    def every(self, *words: str, objects: Sequence[Json] | None = None) -> list[Json]:
        """All objects that it prints."""
        return list(_printed(self.run(*words, "-o", "json", objects=objects)))

    def json(self, *words: str) -> Json:
        """The one object that it prints; empty where there is none."""
        return next(iter(self.every(*words)), {})

    def raw(self, path: str) -> Json:
        """What the API server has at a path."""
        found: Json = json.loads(self.run("get", "--raw", path))
        return found

    def get(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """One object, None where there is none."""
        within = [] if namespace is None else ["-n", namespace]
        return self.json("get", kind, name, *within, "--ignore-not-found") or None

    def apply(self, objects: Sequence[Json]) -> None:
        """Server-side apply of these objects."""
        if objects:
            self.run("apply", "--server-side", "-f", "-", objects=objects)

    def applied(self, objects: Sequence[Json]) -> list[Json]:
        """The objects as an apply would leave them. It changes nothing."""
        words = ("apply", "--server-side", "--dry-run=server", "-f", "-")
        return self.every(*words, objects=objects)

    def live(self, objects: Sequence[Json]) -> list[Json]:
        """The same objects as they are now, as far as they exist."""
        return self.every("get", "--ignore-not-found", "-f", "-", objects=objects)

    def render(self, overlay: Path) -> list[Json]:
        """The objects of an overlay."""
        if not overlay.is_dir():
            raise CommandError(
                Exit.USAGE, f"There is no folder {overlay}: name your overlay by --overlay."
            )
        return list(yaml.safe_load_all(self.run("kustomize", str(overlay))))


def _printed(text: str) -> Iterator[Json]:
    """kubectl prints one object, a list, or, when it creates, one after another."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield from found["items"] if found.get("kind") == "List" else [found]
        text = text[end:].lstrip()


def _list(objects: Sequence[Json]) -> Json:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
