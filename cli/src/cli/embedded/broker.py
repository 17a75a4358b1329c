"""The embedded broker: a Kafka-protocol server in memory, as a process of its own on a fixed port.

`python -m cli.embedded.broker --port N --partitions P topic[=partitions] …` serves until SIGTERM
and prints its address once it is ready. It keeps nothing on disk and about 5 MiB in memory per
partition: its clients must expect to lose records. EmbeddedBroker starts and stops that process.
"""

import argparse
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cli.embedded.process import EmbeddedServerError, die_with_parent
from cli.embedded.server import EmbeddedKafka, open_log

DEFAULT_PARTITIONS = 8
START_TIMEOUT_S = 30.0


class EmbeddedBroker(EmbeddedKafka):
    """A broker process; its end is the end of every record."""

    stop_timeout_s = 5.0

    def __init__(
        self,
        topics: Iterable[str] = (),
        *,
        port: int | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        log: Path | None = None,
    ) -> None:
        super().__init__(port)
        self._topics = list(topics)
        self._partitions = partitions
        self._log_path = log or Path(os.devnull)

    def start(self) -> None:
        """Start the process, anew where it runs; returns when it has passed its self-test."""
        self.stop()
        command = [
            sys.executable,
            "-m",
            "cli.embedded.broker",
            "--die-with-parent",
            str(os.getpid()),
        ]
        command += ["--port", str(self.port), "--partitions", str(self._partitions), *self._topics]
        with open_log(self._log_path) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                part = os.read(process.stdout.fileno(), 4096)
                output += part
                if f"ready {self.bootstrap}\n".encode() in output:
                    return
                if not part:
                    break
        reason = output.decode(errors="replace").strip() or "it was not ready in time"
        raise EmbeddedServerError(
            f"The embedded broker on {self.bootstrap} did not start: {reason}"
        )


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    arguments = _parse()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    if arguments.die_with_parent is not None:
        die_with_parent(arguments.die_with_parent, signal.SIGTERM)
    # Imported here: the class above is also used by programs that load no library of the broker's.
    from cli.embedded.mock_cluster import MockCluster, check

    topics = dict(_topic(text, arguments.partitions) for text in arguments.topics)
    try:
        cluster = MockCluster(arguments.port, topics)
        check(cluster.port, next(iter(topics), None))
    except EmbeddedServerError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(1)
    sys.stdout.write(f"ready 127.0.0.1:{cluster.port}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # the library's threads have nothing to save


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cli.embedded.broker", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=DEFAULT_PARTITIONS)
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help="end when PID ends")
    parser.add_argument("topics", nargs="*", metavar="topic[=partitions]")
    return parser.parse_args()


def _topic(text: str, partitions: int) -> tuple[str, int]:
    name, _, own = text.partition("=")
    return name, int(own or partitions)


if __name__ == "__main__":
    main()
