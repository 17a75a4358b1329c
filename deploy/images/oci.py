"""Writes an image as an OCI archive, which containerd, podman and skopeo read.

The same layers and configuration give the same bytes, and so the same digest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from files import File, Folder, Link, Tree, as_tar

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"
COMPRESSION = 6

Blobs = dict[str, bytes]


@dataclass(frozen=True)
class Image:
    """What an image holds and runs. `name` has the tag; `created` is RFC 3339."""

    name: str
    created: str
    layers: Sequence[Mapping[str, File | Folder | Link]]
    entrypoint: Sequence[str]
    user: str
    environment: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"


def archive(image: Image) -> tuple[bytes, str]:
    """The archive, and the digest of its manifest."""
    blobs: Blobs = {}
    layers, diff_ids = [], []
    for tree in image.layers:
        plain = as_tar(tree)
        diff_ids.append(_digest(plain))
        layers.append(_put(blobs, LAYER, gzip.compress(plain, COMPRESSION, mtime=0)))
    config = {
        "architecture": image.architecture,
        "os": "linux",
        "created": image.created,
        "config": {
            "User": image.user,
            "Env": [f"{name}={value}" for name, value in sorted(image.environment.items())],
            "Entrypoint": list(image.entrypoint),
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [{"created": image.created} for _ in diff_ids],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put(blobs, CONFIG, _json(config)),
        "layers": layers,
    }
    described = _put(blobs, MANIFEST, _json(manifest))
    tag = image.name.rpartition(":")[2]
    described["annotations"] = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": tag,
    }
    described["platform"] = {"architecture": image.architecture, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
    packed: Tree = {
        "oci-layout": File(_json({"imageLayoutVersion": "1.0.0"})),
        "index.json": File(_json(index)),
    }
    packed |= {f"blobs/sha256/{name}": File(content) for name, content in blobs.items()}
    return as_tar(packed), described["digest"]


def _put(blobs: Blobs, kind: str, content: bytes) -> dict[str, Any]:
    digest = _digest(content)
    blobs[digest.removeprefix("sha256:")] = content
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
