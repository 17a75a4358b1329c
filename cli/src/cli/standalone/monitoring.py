"""Prometheus beside a machine's own Muster: where its program is, what it reads, how it runs."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from cli.embedded.process import EmbeddedServerError
from cli.home import checkout_root, write_private
from cli.standalone.processes import Program
from cli.standalone.programs import node_name

PROMETHEUS_PORT = 9090
KEPT_TIME, KEPT_BYTES = "7d", "2GB"
FETCHED = Path("muster/prometheus/current/usr/bin/prometheus")
"""Below the user's cache: where `make prometheus` puts it."""
FOLDER = "prometheus"
RULES = "deploy/monitoring"


def find_prometheus(named: Path | None, environment: Mapping[str, str]) -> Path:
    """The program. Raises EmbeddedServerError with the places where it was looked for."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    fetched = cache / FETCHED
    on_path = shutil.which("prometheus", path=environment.get("PATH", os.defpath))
    candidates = (named,) if named else (fetched, Path(on_path) if on_path else None)
    for candidate in candidates:
        if candidate is not None and os.access(candidate, os.X_OK):
            return candidate
    places = f"at {named} (MUSTER_PROMETHEUS)" if named else f"at {fetched} and on the PATH"
    raise EmbeddedServerError(
        f"No Prometheus was found: `muster up --monitoring` looked {places}. Run `make prometheus`"
        " in the checkout, install Debian's package `prometheus`, or set MUSTER_PROMETHEUS."
    )


def configure(
    folder: Path, services: Mapping[str, int], token: str, *, has_gpu_driver: bool
) -> None:
    """Write what Prometheus reads. Without a driver the rules about GPUs are left out: their
    metrics are missing. Raises EmbeddedServerError without a checkout.
    """
    checkout = checkout_root()
    if checkout is None:
        raise EmbeddedServerError(
            f"`muster up --monitoring` reads {RULES} of a checkout: run it from one."
        )
    shutil.rmtree(folder / "rules", ignore_errors=True)
    shutil.copytree(checkout / RULES / "rules", folder / "rules")
    if not has_gpu_driver:
        (folder / "rules/gpu.yaml").unlink()
    shutil.copy(checkout / RULES / "prometheus.yml", folder)
    write_private(folder / "token", token)
    (folder / "targets").mkdir(exist_ok=True)
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"service": name}
            | ({"node": node_name()} if name == "runtime-agent" else {}),
        }
        for name, port in services.items()
    ]
    (folder / "targets/muster.yaml").write_text(yaml.safe_dump(targets))


def prometheus(binary: Path, home: Path, port: int) -> Program:
    """How it is run over the configured folder."""
    folder = home / FOLDER
    return Program(
        name="prometheus",
        command=(
            str(binary),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--storage.tsdb.retention.time={KEPT_TIME}",
            f"--storage.tsdb.retention.size={KEPT_BYTES}",
            f"--web.listen-address=127.0.0.1:{port}",
        ),
        environment={"PATH": os.defpath},
        port=port,
        log=home / "log" / "prometheus.log",
        healthy="/-/healthy",
        ready="/-/ready",
    )
