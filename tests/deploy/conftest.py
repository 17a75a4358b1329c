"""The overlays, and the objects that they hold."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from manifests import Json
from rendering import K8S, OVERLAYS, render, render_with


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Path:
    """The folder of each overlay."""
    return K8S / "overlays" / str(request.param)


@pytest.fixture
def objects(overlay: Path) -> Sequence[Json]:
    """All objects of an overlay."""
    return render(overlay)


@pytest.fixture
def with_components(tmp_path: Path) -> Callable[..., Sequence[Json]]:
    """Renders the overlay `minimal` with components."""

    def rendered(*names: str) -> Sequence[Json]:
        return render_with(names, tmp_path)

    return rendered
