"""Muster's REST API as the commands use it: plain http.client, as it is imported in a moment.

Failures carry the exit code of the command, so that scripts can distinguish them.
"""

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

TIMEOUT_S = 30.0
API = "/api/v2"
FORBIDDEN = (401, 403)
REFUSED_LOGIN = "IncorrectPasswordError"


class Exit(IntEnum):
    """Exit codes of every command. docs/guide.md lists them."""

    OK = 0
    JOB_FAILED = 1
    CHECK_REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    UNAUTHORISED = 5
    JOB_STOPPED = 6
    TIMED_OUT = 7
    NOT_ALL_READY = 8
    FAILED = 9
    INTERRUPTED = 130


class CommandError(Exception):
    """A command failed; `code` is its exit code."""

    def __init__(self, code: Exit, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


@dataclass(frozen=True)
class Answer:
    """A successful answer of the server."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


@dataclass(frozen=True)
class Client:
    """Talks to one server as one user."""

    url: str
    token: str = ""
    renew: Callable[[], None] = field(default=lambda: None, compare=False)
    """What is done before each request: a login that expires is renewed."""

    def __post_init__(self) -> None:
        """Raises CommandError where no request could be made with these."""
        if not _is_server(self.url):
            raise CommandError(
                Exit.USAGE,
                f"{self.url!r} is no server's address: write MUSTER_URL like http://host:8080.",
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise CommandError(Exit.USAGE, "MUSTER_TOKEN has characters that no token has.")

    def get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Answer:
        """GET below /api/v2; CommandError where the answer is not 2xx."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self.call("GET", f"{API}{path}" + (f"?{urlencode(given)}" if given else ""))

    def get_pages(self, path: str, name: str) -> list[Any]:
        """All entries of a list, page by page; an answer has them under this name."""
        found: list[Any] = []
        while True:
            page = self.get(path, {"offset": len(found) or None}).json()
            found += page[name]
            if not page[name] or len(found) >= page["total"]:
                return found

    def send(
        self, method: str, path: str, content: object, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a JSON body below /api/v2; CommandError where the answer is not 2xx."""
        body = json.dumps(content).encode()
        more = {"Content-Type": "application/json", **(headers or {})}
        return self.call(method, f"{API}{path}", body, more)

    def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, one answer; CommandError where the answer is not 2xx."""
        with self.request(method, target, body, headers) as response:
            content_type = response.headers.get("Content-Type", "")
            answer = Answer(response.status, content_type, response.read())
        if not 200 <= answer.status < 300:
            raise refusal(answer)
        return answer

    @contextmanager
    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[http.client.HTTPResponse]:
        """A request whose answer the caller reads, with any status."""
        self.renew()
        connection = self._connection(timeout_s)
        authorisation = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        is_sent = False
        try:
            connection.request(method, target, body, {**authorisation, **(headers or {})})
            is_sent = True
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if is_sent and isinstance(error, BrokenPipeError):
                raise  # the reader of our output is gone
            raise CommandError(
                Exit.UNREACHABLE,
                f"Muster does not answer at {self.url} ({_reason(error)}): "
                "start it by `muster up`, or name it by MUSTER_URL.",
            ) from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host = parts.hostname or "127.0.0.1"
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s)
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        return False
    return named and parts.scheme in ("http", "https") and parts.path in ("", "/")


def job_path(job: str, rest: str = "") -> str:
    """The path of a job, whose name is `user~name`."""
    return f"/jobs/{quote(job, safe='~')}{rest}"


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return str(error) or type(error).__name__


def refusal(answer: Answer) -> CommandError:
    """The server's error, each problem with its place. A single one, and a first one that the
    message names, is not repeated.
    """
    try:
        content = answer.json()
    except ValueError:
        content = {}
    if not isinstance(content, dict):
        content = {}
    message = content.get("message") or f"HTTP {answer.status}: {answer.text()[:200]}"
    problems = content.get("errors") or ()
    is_named = len(problems) == 1 or (problems and problems[0].get("message", "") in str(message))
    details = tuple(problem_text(each) for each in (problems[1:] if is_named else problems))
    if answer.status in FORBIDDEN:
        code = Exit.UNAUTHORISED
        if answer.status == 401 and content.get("code") != REFUSED_LOGIN:
            message += " Log in by `muster login`."
    else:
        code = Exit.REFUSED if answer.status < 500 else Exit.UNREACHABLE
    return CommandError(code, str(message), details)


def problem_text(problem: Mapping[str, Any]) -> str:
    """One problem of a request, with its place."""
    line = f"line {problem['line']}: " if problem.get("line") else ""
    path = f"{problem['path']}: " if problem.get("path") else ""
    return f"{line}{path}{problem.get('message', '')}"
