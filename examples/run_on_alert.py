"""Run a command of your own on each alert: it takes Muster's signed webhooks.

pip install standardwebhooks
python examples/run_on_alert.py 127.0.0.1:8000 whsec_… ./remediate.sh

The command reads the alerts as JSON from its standard input, and has 10 s. Muster sends them again,
later and later, while it fails.
"""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

address, secret, *command = sys.argv[1:]


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
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
