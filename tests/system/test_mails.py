"""A job that fails tells its owner by mail why."""

from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from mail_server import running_mailbox
from scheduler_watched import until
from whole_muster import a_job, a_muster

pytestmark = pytest.mark.system

FAILS = "raise RuntimeError('no more data in shard 7')"


async def test_a_failed_job_mails_its_owner_the_verdict_the_line_and_a_link(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with running_mailbox() as mailbox:
        settings = {
            "smtp_host": "127.0.0.1",
            "smtp_port": mailbox.port,
            "smtp_tls": "none",
            "job_url": "https://muster.example/jobs/{job}",
            "webhook_key": "key",
        }
        bootstrap = fresh_broker.bootstrap
        async with a_muster(database_url, bootstrap, tmp_path, alerting=settings) as muster:
            body = {"events": ["job-failed"], "email": "ada@example.org"}
            answer = await muster.call("POST", "/api/v2/alerts/subscriptions", json=body)
            assert answer.status_code == 201, answer.text
            (tmp_path / "fails.py").write_text(FAILS)
            name = await muster.submit(a_job("fails", f"python3 {tmp_path}/fails.py"))
            assert await muster.end_of(name) == "FAILED"
            await until(lambda: bool(mailbox.mails))
    (mail,) = mailbox.mails
    assert mailbox.recipients == ["ada@example.org"]
    assert mail["Subject"] == "[Muster] Job admin~fails FAILED"
    for kind in ("plain", "html"):
        part = mail.get_body((kind,))
        assert part is not None
        text = part.get_content()
        assert "(code " in text, "the verdict"
        assert "no more data in shard 7" in text, "the telling line"
        assert "https://muster.example/jobs/admin~fails" in text, "the link"
