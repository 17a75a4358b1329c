"""Plays the Runtime agent that gives start permits to `begin`."""

import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

FIRST_LINE = ": stub\n"
PROOF = sha256(FIRST_LINE.encode()).hexdigest()
"""What `begin` has in MUSTER_PROOF."""


class StubAgent(ThreadingHTTPServer):
    """Gives the answers in turn, the last one for ever."""

    def __init__(self, *answers: tuple[int, str], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: StubAgent

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, parse_qs(body)))
        answers = self.server.answers
        status, text = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(f"{FIRST_LINE}{text}".encode())

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""
