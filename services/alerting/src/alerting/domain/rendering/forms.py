"""What the forms of all receivers over HTTP share."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed, Gone, Sent
from alerting.domain.messages import Message

USER_AGENT = "Muster"

Link = Callable[[str | None], str | None]
"""Gives the address of a job's page."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where a message goes, and what opens it: a token, or secrets that sign, newest first. Has no
    repr: url, token and secrets must not reach logs.
    """

    url: str
    token: str = ""
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sending:
    """One attempt: the id of its delivery, which repeats share, and the time. ``link``: where
    people read on.
    """

    id: str
    at: datetime
    link: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A request as it is posted. Has no repr, as Target."""

    url: str
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The beginning of an answer. ``retry_after_s``: what it asks for."""

    status: int
    text: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpForm:
    """One kind of receiver: how it reads a message, and what its answers mean."""

    render: Callable[[Message, Target, Sending], Request]
    judge: Callable[[HttpAnswer], Answer]


def post(
    url: str, body: Mapping[str, JsonValue], headers: Mapping[str, str] | None = None
) -> Request:
    """A request with a JSON body."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    known = {"content-type": "application/json", "user-agent": USER_AGENT}
    return Request(url, text, {**known, **(headers or {})})


def judge_http(answer: HttpAnswer) -> Answer:
    """What an answer means wherever a kind of receiver says nothing else."""
    status, reason = answer.status, reason_of(answer)
    if 200 <= status < 300:
        return Sent()
    if status == 410:
        return Gone(reason)
    if status == 413:
        return Failed(reason, can_retry=False, is_receivers=False)
    if 300 <= status < 400:
        return Failed(f"HTTP {status}: redirects are not followed, subscribe the final address")
    return Failed(reason, retry_after_s=answer.retry_after_s)


def reason_of(answer: HttpAnswer) -> str:
    """An answer in one line."""
    return f"HTTP {answer.status}: {answer.text}" if answer.text else f"HTTP {answer.status}"


def cut(text: str, most: int) -> str:
    """At most so many characters, the last of them an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes in UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - len("…".encode())].decode(errors="ignore") + "…"
