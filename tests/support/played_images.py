"""The images of an installation, for `kubelet_double.Settings.images`.

Muster's own are those of `make images`. `apache/kafka` is played by the jars of `make kafka`, and
`postgres` by the server that `muster up` uses.
"""

import gzip
import io
import json
import shutil
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cli.embedded.binaries import PACKAGE, VERSION_FOLDER
from kubelet_double import Image

REPOSITORY = Path(__file__).parents[2]
JAVA = "/opt/java/bin/java"
SCRIPTS = {
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-server-start.sh": "kafka.Kafka",
}
POSTGRES = "/usr/local/lib/postgresql"
PEOPLE = "root:x:0:0::/root:/bin/sh\npostgres:x:999:999::/:/bin/sh\n"
ENTRY_POINT = """\
#!/bin/sh -eu
# As the image's: a new database gets its owner, its password and its rule of log-in.
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS
  echo "CREATE DATABASE $POSTGRES_DB;" | postgres --single -D "$PGDATA" postgres
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' "$@"
"""


def images_of_this_checkout(work: Path) -> dict[str, Image]:
    """As `make images` made them, unpacked below a folder."""
    return {name: _unpacked(name, work / name) for name in ("muster-step", "muster")}


def kafka_image(work: Path) -> Image:
    """Its programs take what those of the image take."""
    work.mkdir()
    for name, program in SCRIPTS.items():
        start = f'exec {JAVA} $KAFKA_HEAP_OPTS $KAFKA_LOG4J_OPTS -cp "/opt/kafka/libs/*" {program}'
        (work / name).write_text(f'#!/bin/sh\n{start} "$@"\n')
        (work / name).chmod(0o755)
    java = shutil.which("java")
    assert java is not None, "Java 17 is missing"
    return Image(
        files={
            "/opt/java": str(Path(java).resolve().parents[1]),
            "/opt/kafka/libs": str(REPOSITORY / ".kafka/jars"),
            "/opt/kafka/bin": str(work),
        }
    )


def postgres_image(work: Path) -> Image:
    """A PostgreSQL 18."""
    work.mkdir()
    (work / "passwd").write_text(PEOPLE)
    (work / "docker-entrypoint.sh").write_text(ENTRY_POINT)
    (work / "docker-entrypoint.sh").chmod(0o755)
    found = find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    libraries = package.with_name(f"{package.name}.libs")
    return Image(
        entry_point=["/usr/local/bin/docker-entrypoint.sh"],
        environment={"PATH": f"{POSTGRES}/{package.name}/{VERSION_FOLDER}/bin:/usr/bin:/bin"},
        files={
            "/etc/passwd": str(work / "passwd"),
            f"{POSTGRES}/{package.name}": str(package),
            f"{POSTGRES}/{libraries.name}": str(libraries),
            "/usr/local/bin/docker-entrypoint.sh": str(work / "docker-entrypoint.sh"),
        },
    )


def _unpacked(name: str, root: Path) -> Image:
    """An archive of `make images`, in whose layers nothing is taken away."""
    with tarfile.open(REPOSITORY / f".images/{name}.tar") as archive:

        def blob(described: dict[str, Any]) -> bytes:
            found = archive.extractfile(f"blobs/sha256/{described['digest'].partition(':')[2]}")
            assert found is not None
            return found.read()

        index = archive.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]))
        config = json.loads(blob(manifest["config"]))["config"]
        for layer in manifest["layers"]:
            content = io.BytesIO(gzip.decompress(blob(layer)))
            with tarfile.open(fileobj=content) as files:
                files.extractall(root, filter="fully_trusted")  # noqa: S202  ours
    return Image(
        root=str(root),
        entry_point=config["Entrypoint"],
        environment=dict(each.split("=", 1) for each in config.get("Env", [])),
        user=int(config["User"].partition(":")[0]),
    )
