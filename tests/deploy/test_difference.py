"""What an apply would change, in a few lines."""

from typing import Any

from cli.deploy.difference import changes, summary
from manifests import Json


def an_object(name: str = "rest", generation: int = 1, **spec: Any) -> Json:
    """A Deployment as the server returns it."""
    metadata = {"name": name, "namespace": "muster-system", "generation": generation}
    return {"kind": "Deployment", "metadata": metadata, "spec": spec, "status": {"x": generation}}


def test_only_what_differs_is_named() -> None:
    before = [an_object("same"), an_object(replicas=1, containers=[{"name": "a", "image": "one"}])]
    after = [
        an_object("same", generation=2),
        an_object(replicas=2, containers=[{"name": "a", "image": "two"}]),
        an_object("new"),
    ]
    assert list(summary(changes(before, after))) == [
        "+ 1 Deployment: new",
        "~ Deployment rest: spec.replicas, spec.containers[a].image",
    ]


def test_many_fields_are_counted() -> None:
    before, after = an_object(**dict.fromkeys("abcdef", 1)), an_object(**dict.fromkeys("abcdef", 2))
    [line] = summary(changes([before], [after]))
    assert line.endswith("spec.d and 2 more")
