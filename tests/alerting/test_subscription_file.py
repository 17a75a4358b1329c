"""The operator's file: strict, with lines, and never worse than before."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from alerting.metrics import AlertingMetrics
from alerting.subscription_file import FileWatcher, read_subscriptions
from alerting.subscriptions import Entry
from muster.errors import Rejected
from prometheus_client import CollectorRegistry

SECRET = "whsec_" + "QUJD" * 8
SECRETS = {
    "OPS_SECRET": SECRET,
    "CUT_SECRET": SECRET[:-1],
    "ODD_SECRET": SECRET.replace("Q", "é"),
}
GOOD = b"""
subscriptions:
  - id: ops
    events: [node-lost, node-returned]
    webhookUrl: https://hooks.example.org/T0
    secrets: [{env: OPS_SECRET}]
  - id: team
    events: [job-failed]
    email: team@example.org
    filter: {users: [ada], jobNames: ["train-*"]}
"""


def test_a_file_gives_subscriptions_with_their_own_secrets() -> None:
    entries = read_subscriptions(GOOD, {"OPS_SECRET": SECRET})
    assert list(entries) == ["file/ops", "file/team"]
    assert entries["file/ops"].secrets == (SECRET,)
    assert entries["file/team"].subscription.filter.job_names == ("train-*",)
    assert SECRET not in repr(entries)


def test_a_secret_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    place.write_text(SECRET + "\n")
    data = GOOD.replace(b"env: OPS_SECRET", f"file: {place}".encode())
    assert read_subscriptions(data, {})["file/ops"].secrets == (SECRET,)


@pytest.mark.parametrize(
    ("old", "new", "notice"),
    [
        (b"node-lost, ", b"node-gone, ", "line 4: subscriptions.0.events: the event is unknown"),
        (b"email: team", b"mail: team", "line 9: subscriptions.1.mail"),
        (b"id: team", b"id: ops", "line 7: subscriptions.1.id: another subscription has this id"),
        (b"OPS_SECRET", b"NO_SECRET", "line 6: subscriptions.0.secrets: the environment variable"),
        (b"OPS_SECRET", b"CUT_SECRET", "line 6: subscriptions.0.secrets: the environment variable"),
        (b"OPS_SECRET", b"ODD_SECRET", "line 6: subscriptions.0.secrets: the environment variable"),
        (b"{env:", b"{file: /x, env:", "line 6: subscriptions.0.secrets.0: name one place"),
        (b"email:", b"webhookUrl: http://x\n    email:", "line 7: subscriptions.1: give one"),
        (b"events: [job-failed]", b"events: [job-failed", "line "),
        (b"subscriptions:", b"subscription:", "subscriptions: Field required"),
    ],
)
def test_a_fault_is_named_with_its_line(old: bytes, new: bytes, notice: str) -> None:
    with pytest.raises(Rejected) as caught:
        read_subscriptions(GOOD.replace(old, new), SECRETS)
    assert notice in str(caught.value)


def test_the_last_good_file_counts_until_it_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_SECRET", SECRET)
    registry = CollectorRegistry()
    seen: list[Mapping[str, Entry]] = []
    file = tmp_path / "subscriptions.yaml"
    watcher = FileWatcher(file, seen.append, AlertingMetrics(registry), 1.0)

    def is_ok() -> float | None:
        return registry.get_sample_value("muster_alerting_subscriptions_file_ok")

    assert is_ok() == 1  # as where no file is set
    watcher.look()
    assert (len(seen), is_ok()) == (0, 0)
    file.write_bytes(GOOD)
    watcher.look()
    watcher.look()
    assert (len(seen), is_ok()) == (1, 1)
    file.write_bytes(GOOD + b"  - {}")
    watcher.look()
    assert (len(seen), is_ok()) == (1, 0)
    file.write_bytes(GOOD.replace(b"ada", b"adam"))
    watcher.look()
    assert (len(seen), is_ok()) == (2, 1)
    assert seen[0]["file/team"].version != seen[1]["file/team"].version
