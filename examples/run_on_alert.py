"""Run a command of your own on each alert: it takes Muster's signed webhooks.

pip install standardwebhooks
MUSTER_HOOK_SECRET=whsec_… python examples/run_on_alert.py 10.0.0.7:8000 ./remediate.sh

The command reads the alerts as JSON from its standard input, and has 10 s. Muster sends them again,
later and later, while it fails.
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

MOST_BYTES = 1 << 20
address, *command = sys.argv[1:]
secret = os.environ.pop("MUSTER_HOOK_SECRET")  # the command need not know it


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MOST_BYTES))
        try:
            data = Webhook(secret).verify(body, {k.lower(): v for k, v in self.headers.items()})
        except WebhookVerificationError:
            self.send_error(401)
            return
        alerts = json.dumps(data["data"].get("alerts", []))
        try:
            done = subprocess.run(command, input=alerts, text=True, timeout=10, check=False)
            self.send_response(204 if done.returncode == 0 else 500)
        except subprocess.TimeoutExpired:
            self.send_response(500)
        self.end_headers()


host, _, port = address.rpartition(":")
ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
