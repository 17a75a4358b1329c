"""The manifests as kubectl renders them. Rendering needs no cluster."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kube_programs
import yaml
from manifests import Json

K8S = Path(__file__).parents[2] / "deploy/k8s"
OVERLAYS = ("minimal", "production")
COMPONENTS = ("fence", "monitoring", "network-policies", "nvidia")
RENDER_TIMEOUT_S = 60


@cache
def render(folder: Path) -> Sequence[Json]:
    """All objects of a kustomization. kustomize must warn of nothing."""
    done = subprocess.run(
        [kube_programs.program("kubectl"), "kustomize", folder],
        capture_output=True,
        text=True,
        timeout=RENDER_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return list(yaml.safe_load_all(done.stdout))


def render_with(components: Sequence[str], work: Path, **more: Any) -> Sequence[Json]:
    """The overlay `minimal` with components and more. `work` is an empty folder."""
    k8s = os.path.relpath(K8S, work)
    text = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{k8s}/overlays/minimal"],
        "components": [f"{k8s}/components/{name}" for name in components],
    } | more
    (work / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return render(work)
