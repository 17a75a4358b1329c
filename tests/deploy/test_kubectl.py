"""What people read where kubectl fails."""

from pathlib import Path

import pytest
from cli.client import CommandError, Exit
from cli.deploy.kubectl import Connection, Kubectl

LOG = 'E1126 18:16:10.180209   10060 memcache.go:265] "Unhandled Error" err="connection refused"'
REFUSED = (
    "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host?"
)


def failing(folder: Path, *lines: str) -> Kubectl:
    """One that prints these lines as its error."""
    program = folder / "kubectl"
    program.write_text("#!/bin/sh\ncat >&2 <<'END'\n" + "\n".join(lines) + "\nEND\nexit 1\n")
    program.chmod(0o755)
    return Kubectl(Connection(kubectl=str(program)))


@pytest.mark.parametrize(
    ("lines", "code", "text", "details"),
    [
        (
            (LOG, LOG, REFUSED),
            Exit.UNREACHABLE,
            f"kubectl get: {REFUSED} Start the cluster, or name another one by --context or"
            " --kubeconfig.",
            (),
        ),
        (
            ("error: You must be logged in to the server (Unauthorized)",),
            Exit.REFUSED,
            "kubectl get: error: You must be logged in to the server (Unauthorized) Renew your"
            " log-in to the cluster: `kubectl get nodes` has to work.",
            (),
        ),
        (
            ("Error from server: etcdserver: leader changed",),
            Exit.UNREACHABLE,
            "kubectl get: Error from server: etcdserver: leader changed",
            (),
        ),
        (
            ('The StatefulSet "kafka" is invalid: spec: Forbidden: updates to statefulset spec',),
            Exit.REFUSED,
            'kubectl get: The StatefulSet "kafka" is invalid: spec: Forbidden: updates to'
            " statefulset spec Delete the StatefulSet, and then go on. Its data stay: to change"
            " its volume too, delete its claim with all data.",
            (),
        ),
        (
            ('Error from server (Forbidden): nodes is forbidden: User "ada" cannot list nodes',),
            Exit.REFUSED,
            'kubectl get: Error from server (Forbidden): nodes is forbidden: User "ada" cannot list'
            " nodes Use a context with the role cluster-admin.",
            (),
        ),
        (
            ('Error from server (Forbidden): pods "a" is forbidden: exceeded quota: few',),
            Exit.REFUSED,
            'kubectl get: Error from server (Forbidden): pods "a" is forbidden: exceeded quota: few'
            " Raise this quota. Then go on.",
            (),
        ),
        (("one", LOG, "two"), Exit.REFUSED, "kubectl get: one", ("two",)),
        ((LOG,), Exit.REFUSED, f"kubectl get: {LOG}", ()),
    ],
)
def test_an_error_is_kubectls_own_with_the_fix_and_without_its_log(
    tmp_path: Path, lines: tuple[str, ...], code: Exit, text: str, details: tuple[str, ...]
) -> None:
    with pytest.raises(CommandError) as refused:
        failing(tmp_path, *lines).run("get", "nodes")
    assert (refused.value.code, str(refused.value), refused.value.details) == (code, text, details)
