"""The manifests as kubectl renders them, by overlay. Rendering needs no cluster."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kube_programs
import pytest
import yaml

Json = dict[str, Any]

K8S = Path(__file__).parents[2] / "deploy/k8s"
OVERLAYS = ("minimal", "production")
RENDER_TIMEOUT_S = 60


@cache
def render(folder: Path) -> Sequence[Json]:
    """All objects of a kustomization."""
    done = subprocess.run(
        [
            (__import__("shutil").which("kubectl") or kube_programs.program("kubectl")),
            "kustomize",
            folder,
        ],
        capture_output=True,
        text=True,
        timeout=RENDER_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # kustomize's warnings
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Path:
    """The folder of each overlay."""
    return K8S / "overlays" / str(request.param)


@pytest.fixture
def objects(overlay: Path) -> Sequence[Json]:
    """All objects of an overlay."""
    return render(overlay)


@pytest.fixture
def with_components(tmp_path: Path) -> Iterator[Callable[..., Sequence[Json]]]:
    """Renders the overlay `minimal` with components."""

    def rendered(*names: str) -> Sequence[Json]:
        folder = K8S / f"rendered-by-a-test-{tmp_path.name}"
        folder.mkdir()
        try:
            text = {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": ["../overlays/minimal"],
                "components": [f"../components/{name}" for name in names],
            }
            (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
            return render(folder)
        finally:
            (folder / "kustomization.yaml").unlink()
            folder.rmdir()

    return rendered
