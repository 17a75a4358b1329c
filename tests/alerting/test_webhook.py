"""Webhooks over real sockets: signed for the judge, guarded at the connection, bounded."""

import json
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain.deliveries import Failed, Gone, Sent
from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.rendering import FORMS
from alerting.domain.rendering.forms import Sending, Target
from alerting.receivers.http import HttpLimits, HttpMessage, HttpReceiver
from muster.address_guard import Resolve
from muster.addresses import is_public_or_within, networks_of
from muster.contracts.subscriptions import ReceiverKind
from muster.webhook_secrets import signing_secret
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

HERE = networks_of("127.0.0.0/8")
OPEN = HttpLimits(allowed=HERE)
OLD, NEW = (signing_secret("key", "s1", version) for version in (1, 2))


def right_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the judge looks at the clock


AT = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE = Message("k", "job-failed", AT, Severity.WARNING, "t", "x", "job/j1", {"ü": 1})


def a_message(
    url: str, secrets: tuple[str, ...] = (NEW,), at: datetime | None = None
) -> HttpMessage:
    sending = Sending("msg_1", at or right_now())
    return HttpMessage(FORMS[ReceiverKind.WEBHOOK], MESSAGE, Target(url, secrets=secrets), sending)


def always(*addresses: str) -> Resolve:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


async def test_the_judge_accepts_our_signature(start_receiver: Callable[..., Any]) -> None:
    receiver = await start_receiver()
    async with HttpReceiver(OPEN) as way:
        assert await way.send(a_message(receiver.url)) == Sent()
    (request,) = receiver.requests
    assert Webhook(NEW).verify(request.body, request.headers) == json.loads(request.body)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(request.body, request.headers)
    assert request.headers["content-type"] == "application/json"


async def test_both_secrets_verify_while_one_replaces_the_other(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver()
    async with HttpReceiver(OPEN) as way:
        await way.send(a_message(receiver.url, secrets=(NEW, OLD)))
    (request,) = receiver.requests
    for secret in (OLD, NEW):
        Webhook(secret).verify(request.body, request.headers)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:7f00:1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:1:1:0:0:f5ff:fffe",
        "nonsense",
    ],
)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_public_or_within(address, ())


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_what_is_public_is_public_or_within(address: str) -> None:
    assert is_public_or_within(address, ())


def test_what_the_operator_allows_is_public_or_within() -> None:
    allowed = networks_of("10.0.0.0/8, fd00::/8")
    assert is_public_or_within("10.1.2.3", allowed)
    assert is_public_or_within("fd00::1", allowed)
    assert not is_public_or_within("192.168.1.1", allowed)


PRIVATE = "MUSTER_WEBHOOK_ALLOW_NETWORKS"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", PRIVATE),
        ("[::1]", PRIVATE),
        ("localhost", PRIVATE),
        ("0x7f.1", PRIVATE),
        ("2130706433", "not a canonical IPv4 address"),
    ],
)
async def test_a_private_receiver_is_never_connected_to(
    start_receiver: Callable[..., Any], host: str, words: str
) -> None:
    receiver = await start_receiver()
    async with HttpReceiver(HttpLimits()) as way:
        answer = await way.send(a_message(f"http://{host}:{receiver.port}/"))
    assert isinstance(answer, Failed)
    assert not answer.can_retry
    assert words in answer.reason
    assert receiver.connections == 0


async def test_the_connection_goes_to_the_address_that_was_judged(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver()
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with HttpReceiver(OPEN, resolve=rebinding) as way:
        assert await way.send(a_message(f"http://hooks.test:{receiver.port}/x")) == Sent()
    assert asked == ["hooks.test"]
    assert receiver.requests[0].headers["host"] == f"hooks.test:{receiver.port}"


async def test_private_addresses_beside_a_public_one_are_passed_over(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver()
    resolve = always("10.0.0.1", "127.0.0.1")
    async with HttpReceiver(OPEN, resolve=resolve) as way:
        assert await way.send(a_message(f"http://hooks.test:{receiver.port}/x")) == Sent()


async def test_the_next_address_is_tried_where_one_does_not_answer(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver()
    resolve = always("127.0.0.2", "127.0.0.1")  # nobody listens at the first
    async with HttpReceiver(OPEN, resolve=resolve) as way:
        assert await way.send(a_message(f"http://hooks.test:{receiver.port}/x")) == Sent()


async def test_tls_asks_for_the_name_though_the_address_is_pinned(
    start_receiver: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    receiver = await start_receiver(tls=True)
    async with HttpReceiver(OPEN, resolve=always("127.0.0.1"), tls=trusting) as way:
        assert await way.send(a_message(f"https://hooks.test:{receiver.port}/x")) == Sent()
        wrong = await way.send(a_message(f"https://other.test:{receiver.port}/x"))
    assert receiver.server_names == ["hooks.test", "other.test"]
    assert isinstance(wrong, Failed)
    assert len(receiver.requests) == 1


async def test_a_connection_is_kept_and_replaced_once_it_is_closed(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver(answers=2)
    async with HttpReceiver(OPEN) as way:
        for connections, requests in ((1, 1), (1, 2), (2, 4)):  # the third is not answered at first
            assert await way.send(a_message(receiver.url)) == Sent()
            assert (receiver.connections, len(receiver.requests)) == (connections, requests)


async def test_names_with_one_address_share_no_connection(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver(answers=2)
    async with HttpReceiver(OPEN, resolve=always("127.0.0.1")) as way:
        for name in ("one.test", "other.test"):
            await way.send(a_message(f"http://{name}:{receiver.port}/x"))
    assert receiver.connections == 2


async def test_redirects_are_not_followed(start_receiver: Callable[..., Any]) -> None:
    other = await start_receiver()
    receiver = await start_receiver(status=307, extra=f"location: {other.url}\r\n")
    async with HttpReceiver(OPEN) as way:
        answer = await way.send(a_message(receiver.url))
    assert isinstance(answer, Failed)
    assert "redirects" in answer.reason
    assert other.connections == 0


@pytest.mark.parametrize("status", [400, 401, 404, 408, 429, 500, 502, 503])
async def test_a_failure_may_be_tried_again(
    start_receiver: Callable[..., Any], status: int
) -> None:
    receiver = await start_receiver(status=status, body=b"no\nthanks")
    async with HttpReceiver(OPEN) as way:
        assert await way.send(a_message(receiver.url)) == Failed(f"HTTP {status}: no thanks")


async def test_a_receiver_that_answers_gone_is_gone(start_receiver: Callable[..., Any]) -> None:
    receiver = await start_receiver(status=410)
    async with HttpReceiver(OPEN) as way:
        assert await way.send(a_message(receiver.url)) == Gone("HTTP 410")


async def test_retry_after_is_understood(start_receiver: Callable[..., Any]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    async with HttpReceiver(OPEN) as way:
        for text, wait_s in [
            ("120", 120.0),
            ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
            ("Wed, 31 Dec 2025 00:01:00 GMT", 0.0),
            ("soon", 0.0),
        ]:
            receiver = await start_receiver(status=503, extra=f"retry-after: {text}\r\n")
            answer = await way.send(a_message(receiver.url, at=at))
            assert answer == Failed("HTTP 503", retry_after_s=wait_s)


async def test_a_hanging_receiver_costs_no_more_than_the_timeout(
    start_receiver: Callable[..., Any],
) -> None:
    receiver = await start_receiver(is_hanging=True)
    async with HttpReceiver(HttpLimits(timeout_s=0.3, allowed=HERE)) as way:
        assert await way.send(a_message(receiver.url)) == Failed("no answer within 0.3 s")


@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_answer_is_not_read_to_its_end(
    start_receiver: Callable[..., Any], status: int
) -> None:
    receiver = await start_receiver(status=status, is_endless=True)
    async with HttpReceiver(OPEN) as way:
        answer = await way.send(a_message(receiver.url))
    assert answer == (Sent() if status == 200 else Failed(f"HTTP 500: {'x' * 200}"))
    assert receiver.sent_bytes < 20_000_000


@pytest.mark.parametrize("url", ["ftp://example.org/", "nonsense", "http://", "file:///etc/passwd"])
async def test_what_is_no_web_address_is_refused(url: str) -> None:
    async with HttpReceiver(OPEN) as way:
        answer = await way.send(a_message(url))
    assert isinstance(answer, Failed)
    assert not answer.can_retry


async def test_a_name_that_leads_nowhere_may_be_tried_again() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    async with HttpReceiver(OPEN, resolve=resolve) as way:
        answer = await way.send(a_message("http://hooks.test/"))
    assert isinstance(answer, Failed)
    assert answer.can_retry


async def test_nothing_secret_is_in_a_reason(start_receiver: Callable[..., Any]) -> None:
    rejected = await start_receiver()
    url = f"http://127.0.0.1:1/T0/marker-{rejected.port}"
    async with HttpReceiver(OPEN) as way:
        message = a_message(url, at=right_now() - timedelta(hours=1))
        answer = await way.send(message)
    assert "marker" not in repr(answer) + repr(message)
    assert NEW not in repr(answer) + repr(message)
