"""A real Apache Kafka (KRaft, one node) as a process of its own, instead of the embedded broker.

`make` fetches the jars that deploy/kafka/pom.xml pins and calls `python -m cli.embedded.apache
FOLDER`, which prepares there what makes starts quick: a formatted data folder to copy and an
archive of loaded classes. Needs Java 17 or newer (JAVA_HOME, else `java` on the PATH).
"""

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from cli.embedded.mock_cluster import check
from cli.embedded.process import (
    EmbeddedServerError,
    dying_with_me,
    end,
    end_leftovers,
    free_port,
)
from cli.embedded.server import EmbeddedKafka, open_log

START_TIMEOUT_S = 120.0
PREPARE_TIMEOUT_S = 180.0
POLL_S = 0.1
OLDEST_JAVA = 17
HEAP = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ARCHIVE = "classes.jsa"
TEMPLATE = "template"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=1
num.io.threads=2
background.threads=1
auto.create.topics.enable=false
"""


class ApacheKafka(EmbeddedKafka):
    """A broker over the folder `home`; `installation` holds the jars and what `prepare` made.

    `properties`: further lines of its server.properties.
    """

    def __init__(
        self, home: Path, installation: Path, *, port: int | None = None, properties: str = ""
    ) -> None:
        super().__init__(port)
        self.home = home.absolute()
        self.log_path = self.home / "kafka.log"
        self._installation = installation.absolute()
        self._properties = properties

    def start(self) -> None:
        """Start the broker over its data, or over new data; returns when it answers."""
        java = _java()
        classes = _class_path(self._installation)
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        end_leftovers(self.home, "java", self.stop_signal, self.stop_timeout_s)
        if not (self.home / "data").exists():
            _format(self.home, self._installation)
        self._launch(_command(java, classes, self._installation, self._write_properties()))
        self._await_ready()

    def _write_properties(self) -> Path:
        text = PROPERTIES.format(
            port=self.port,
            controller_port=free_port(),
            data=self.home / "data",
        )
        path = self.home / "server.properties"
        path.write_text(text + self._properties)
        return path

    def _launch(self, command: Sequence[str]) -> None:
        with open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,  # by which a later owner knows what was left over
                start_new_session=True,
                preexec_fn=dying_with_me(self.stop_signal),
            )

    def _await_ready(self) -> None:
        where = f"Apache Kafka on {self.bootstrap} over {self.home}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.pid is None:
                words = self.log_path.read_bytes()[-1500:].decode(errors="replace").strip()
                raise EmbeddedServerError(f"{where} ended at its start: {words}")
            try:
                check(self.port, None)
            except EmbeddedServerError:
                time.sleep(POLL_S)
            else:
                return
        self.kill()
        raise EmbeddedServerError(
            f"{where} was not ready after {START_TIMEOUT_S:.0f} s: see {self.log_path}."
        )


def prepare(installation: Path) -> None:
    """Make the template and the class archive beside the jars, unless they are there."""
    java, classes = _java(), _class_path(installation)
    if not (installation / TEMPLATE).exists():
        making = installation / "template.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        properties = making / "server.properties"
        properties.write_text(PROPERTIES.format(port=1, controller_port=2, data=making / "data"))
        format_it = ["kafka.tools.StorageTool", "format", "-t", _new_id(), "-c", str(properties)]
        done = subprocess.run(
            [java, *HEAP, "-cp", classes, *format_it],
            capture_output=True,
            text=True,
            timeout=PREPARE_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise EmbeddedServerError(f"Kafka's data can't be formatted: {done.stderr[-1000:]}")
        making.rename(installation / TEMPLATE)
    if not (installation / ARCHIVE).exists():
        _archive_classes(installation)


def _archive_classes(installation: Path) -> None:
    """Run a broker once, and have Java write down at its end which classes it loaded."""
    home = installation / "training"
    shutil.rmtree(home, ignore_errors=True)
    making = installation / f"{ARCHIVE}.making"
    training = ApacheKafka(home, installation)
    home.mkdir()
    _format(home, installation)
    command = _command(
        _java(), _class_path(installation), installation, training._write_properties()
    )
    training._launch([command[0], f"-XX:ArchiveClassesAtExit={making}", *command[1:]])
    training._await_ready()
    assert training._process is not None
    end(training._process, signal.SIGTERM, PREPARE_TIMEOUT_S)
    shutil.rmtree(home)
    making.rename(installation / ARCHIVE)


def _java() -> str:
    """The Java to use; EmbeddedServerError where there is none that is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise EmbeddedServerError(
            "Apache Kafka needs Java 17 or newer: install it or set JAVA_HOME, "
            "or use the embedded broker."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        raise EmbeddedServerError(f"{java} is too old for Apache Kafka, which needs Java 17.")
    return java


def _class_path(installation: Path) -> str:
    """The jars, always in the same order: a class archive holds for one order only."""
    jars = sorted(str(jar) for jar in (installation / "jars").glob("*.jar"))
    if not jars:
        raise EmbeddedServerError(
            f"There are no jars of Apache Kafka in {installation}/jars: run `make kafka`, "
            "or use the embedded broker."
        )
    return ":".join(jars)


def _command(java: str, classes: str, installation: Path, properties: Path) -> list[str]:
    archive = installation / ARCHIVE
    logging = Path(__file__).with_name("log4j2.properties")
    options = [*HEAP, f"-Dlog4j2.configurationFile={logging}"]
    if archive.exists():
        options.append(f"-XX:SharedArchiveFile={archive}")
    return [java, *options, "-cp", classes, "kafka.Kafka", str(properties)]


def _format(home: Path, installation: Path) -> None:
    """New data from the template, with ids of its own: clients tell clusters apart by them."""
    template = installation / TEMPLATE / "data"
    if not template.exists():
        raise EmbeddedServerError(f"{installation} is not prepared: run `make kafka`.")
    making = home / "data.making"
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(template, making)
    meta = making / "meta.properties"
    text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={_new_id()}", meta.read_text())
    meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={_new_id()}", text))
    making.rename(home / "data")


def _new_id() -> str:
    """An id as Kafka makes them: a random UUID in URL-safe base64, not starting with a dash."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not made.startswith("-"):
            return made


if __name__ == "__main__":
    try:
        prepare(Path(sys.argv[1]).absolute())
    except EmbeddedServerError as error:
        sys.exit(str(error))
