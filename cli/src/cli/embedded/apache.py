"""A real Apache Kafka (KRaft, one node) as a process of its own, instead of the embedded broker.

It is secured: TLS with a certificate of its own, log-ins by SCRAM-SHA-512, and rights only for the
administrator until `muster.bus_admin` grants the rights of the table of topics. The administrator
logs in by a password in server.properties, and creates the users.

`make` fetches the jars that deploy/kafka/pom.xml pins and calls `python -m cli.embedded.apache
FOLDER`, which prepares there what makes starts quick: a formatted data folder to copy and an
archive of loaded classes. Needs Java 17 or newer (JAVA_HOME, else `java` on the PATH).
"""

import base64
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from muster.contracts.acls import OPERATOR, agent_user
from muster.contracts.topics import Service

from cli.embedded.process import (
    EmbeddedServerError,
    dying_with_me,
    end,
    end_leftovers,
    free_port,
)
from cli.embedded.server import EmbeddedKafka, open_log
from cli.home import read_json, write_json, write_private

START_TIMEOUT_S = 120.0
PREPARE_TIMEOUT_S = 180.0
POLL_S = 0.1
OLDEST_JAVA = 17
HEAP = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ARCHIVE = "classes.jsa"
TEMPLATE = "template"

ADMINISTRATOR = "administrator"
NODE = "here"
"""The machine's one agent has this user, whatever its node is called."""
AGENT = agent_user(NODE)
USERS = (*(each.value for each in Service if each is not Service.RUNTIME_AGENT), OPERATOR, AGENT)
PASSWORDS, CA, KEYS = "passwords.json", "ca.pem", "tls.p12"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="{ADMINISTRATOR}" password="{{0}}" user_{ADMINISTRATOR}="{{0}}";'
)
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
ITERATIONS = 4096  # Kafka's least: passwords have 256 random bits
KEYTOOL_TIMEOUT_S = 60.0
VALID_DAYS = 3650
ASK_S = 5.0

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=SASL_SSL://127.0.0.1:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.controller.sasl.enabled.mechanisms=PLAIN
listener.name.controller.plain.sasl.jaas.config={plain}
listener.name.sasl_ssl.plain.sasl.jaas.config={plain}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}
ssl.keystore.type=PKCS12
ssl.keystore.location={home}/{keys}
ssl.keystore.password={password}
ssl.truststore.type=PEM
ssl.truststore.location={home}/{ca}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:{administrator}
log.dirs={home}/data
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
        """Start the broker over its data, or over new data; returns when it answers and knows its
        users.
        """
        java = _java()
        classes = _class_path(self._installation)
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        end_leftovers(self.home, "java", self.stop_signal, self.stop_timeout_s)
        if not (self.home / "data").exists():
            _format(self.home, self._installation)
        if not (self.home / PASSWORDS).exists():
            _make_logins(self.home)
        self._launch(_command(java, classes, self._installation, self._write_properties()))
        self._await_ready()

    def login(self, user: str) -> dict[str, str]:
        """The settings by which a user connects (muster.settings.KafkaSettings)."""
        return login(self.home, user) | {"kafka_bootstrap": self.bootstrap}

    def _write_properties(self) -> Path:
        password = _password(self.home, ADMINISTRATOR)
        text = PROPERTIES.format(
            port=self.port,
            controller_port=free_port(),
            home=self.home,
            keys=KEYS,
            ca=CA,
            administrator=ADMINISTRATOR,
            password=password,
            plain=PLAIN.format(password),
            scram=SCRAM,
        )
        path = self.home / "server.properties"
        write_private(path, text + self._properties)
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
                output = self.log_path.read_bytes()[-1500:].decode(errors="replace").strip()
                raise EmbeddedServerError(f"{where} ended at its start: {output}")
            if self._set_users():
                return
            time.sleep(POLL_S)
        self.kill()
        raise EmbeddedServerError(
            f"{where} was not ready after {START_TIMEOUT_S:.0f} s: see {self.log_path}."
        )

    def _set_users(self) -> bool:
        """Have the broker know all users and their passwords; False while it does not answer."""
        # Imported here: it costs time, and `muster events` needs this module for its log-in.
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are there
            AdminClient,
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialAlteration,
            UserScramCredentialUpsertion,
        )

        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": ADMINISTRATOR,
                "sasl.password": _password(self.home, ADMINISTRATOR),
                "ssl.ca.location": str(self.home / CA),
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        upserts: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(user, scram, password.encode())
            for user, password in read_json(self.home / PASSWORDS).items()
        ]
        try:
            done = admin.alter_user_scram_credentials(upserts, request_timeout=ASK_S)
            for each in done.values():
                each.result()
        except KafkaException:
            return False
        return True


def login(home: Path, user: str) -> dict[str, str]:
    """The settings by which a user of the broker over this folder logs in, but for its address."""
    return {
        "kafka_security_protocol": "SASL_SSL",
        "kafka_user": user,
        "kafka_password": _password(home, user),
        "kafka_ca_file": str(home / CA),
    }


def _password(home: Path, user: str) -> str:
    return str(read_json(home / PASSWORDS)[user])


def _make_logins(home: Path) -> None:
    """Make a password for each user, a key, and a certificate that it signed itself. Java brings
    the tool for these.
    """
    passwords = {user: secrets.token_urlsafe(32) for user in (ADMINISTRATOR, *USERS)}
    (home / KEYS).unlink(missing_ok=True)
    store = ["-keystore", str(home / KEYS), "-storetype", "PKCS12", "-storepass:env", "STORE_PASS"]
    of = ["-alias", "kafka", "-dname", "CN=muster-kafka", "-validity", str(VALID_DAYS)]
    key = ["-keyalg", "EC", "-groupname", "secp256r1"]
    extensions = ["-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true"]
    usage = ["-ext", "ku:c=digitalSignature,keyCertSign"]
    environment = os.environ | {"STORE_PASS": passwords[ADMINISTRATOR]}
    certificate = b""
    for arguments in (
        ["-genkeypair", *store, *of, *key, *extensions, *usage],
        ["-exportcert", "-rfc", *store, "-alias", "kafka"],
    ):
        done = subprocess.run(
            [Path(_java()).with_name("keytool"), *arguments],
            env=environment,
            umask=0o077,
            capture_output=True,
            timeout=KEYTOOL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr)[-1000:].decode(errors="replace")
            raise EmbeddedServerError(f"keytool can't make Kafka's certificate: {output}")
        certificate = done.stdout
    write_private(home / CA, certificate.decode())
    write_json(home / PASSWORDS, passwords)


def prepare(installation: Path) -> None:
    """Make the template and the class archive beside the jars, unless they are there."""
    java, classes = _java(), _class_path(installation)
    if not (installation / TEMPLATE).exists():
        making = installation / "template.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        _make_logins(making)
        properties = str(ApacheKafka(making, installation, port=1)._write_properties())
        format_it = ["kafka.tools.StorageTool", "format", "-t", _new_id(), "-c", properties]
        done = subprocess.run(
            [java, *HEAP, "-cp", classes, *format_it],
            capture_output=True,
            text=True,
            timeout=PREPARE_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise EmbeddedServerError(f"Kafka's data can't be formatted: {done.stderr[-1000:]}")
        (making / "data").rename(installation / TEMPLATE)
        shutil.rmtree(making)
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
    _make_logins(home)
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
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', version)
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
    """New data from the template, with ids of its own: clients distinguish clusters by them."""
    template = installation / TEMPLATE
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
