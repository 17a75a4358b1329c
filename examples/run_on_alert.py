"""Run a command of your own on each alert, or to remediate a node. It takes signed webhooks.

pip install standardwebhooks
MUSTER_HOOK_SECRET=whsec_… python examples/run_on_alert.py 10.0.0.7:8000 ./on_alert.sh

Subscribed to `alert-raised` and `alert-resolved`, it runs the command on each message. The command
reads the alerts as JSON from its standard input, and has 10 s. Muster sends them again, later and
later, while it fails. Other messages, as of a test, run no command.

Subscribed to `remediation-requested`, it runs the command once for each action, and answers with
its exit status and last line. It needs MUSTER_URL. Each message has a code that opens its answer,
and nothing else. The command reads the action as JSON, and has MUSTER_SCRIPT_S (1800) seconds.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

MOST_BYTES = 1 << 20
ALERTS = ("alert.raised", "alert.resolved")
ANSWERS, WAIT_S = 20, 15  # REST may be away for a moment
address, *command = sys.argv[1:]
secret = os.environ.pop("MUSTER_HOOK_SECRET")  # the command need not know it
begun: set[str] = set()


def is_late(action: dict[str, str]) -> bool:
    """A message that comes late, or is replayed, must not touch a node that is in use again."""
    until = action.get("until")
    now = datetime.now(UTC)  # noqa: TID251 - as Muster's clock
    return until is not None and datetime.fromisoformat(until) <= now


def remediate(action: dict[str, str]) -> None:
    """Run the command for an action, and answer Muster."""
    code = action.pop("code", "")  # the command need not know it
    timeout_s = float(os.environ.get("MUSTER_SCRIPT_S", "1800"))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(action),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        succeeded, text = done.returncode == 0, done.stdout[-10_000:]
    except (OSError, subprocess.TimeoutExpired) as error:
        succeeded, text = False, str(error)
    request = urllib.request.Request(  # noqa: S310 - Muster's own address
        f"{os.environ['MUSTER_URL']}/api/v2/alerts/actions/{action['action']}/answer",
        json.dumps({"succeeded": succeeded, "text": text}).encode(),
        {"Authorization": f"Bearer {code}", "Content-Type": "application/json"},
    )
    for _ in range(ANSWERS):
        try:
            urllib.request.urlopen(request, timeout=WAIT_S).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            if error.code < 500:
                sys.stderr.write(f"{action['action']}: {error.read().decode()}\n")
                return
        except OSError as error:
            sys.stderr.write(f"{action['action']}: {error}\n")
        else:
            return
        time.sleep(WAIT_S)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MOST_BYTES))
        try:
            event = Webhook(secret).verify(body, {k.lower(): v for k, v in self.headers.items()})
        except WebhookVerificationError:
            self.send_error(401)
            return
        data, status = event["data"], 204  # other messages, as a test's, are for no command
        if event["type"] == "remediation.requested":
            if (action := data.get("action")) and action not in begun and not is_late(data):
                begun.add(action)
                threading.Thread(target=remediate, args=(data,)).start()
        elif event["type"] in ALERTS and (alerts := data.get("alerts")):
            status = 204 if self.is_handled(alerts) else 500
        self.send_response(status)
        self.end_headers()

    def is_handled(self, alerts: list[object]) -> bool:
        try:
            done = subprocess.run(
                command, input=json.dumps(alerts), text=True, timeout=10, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


host, _, port = address.rpartition(":")
ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
