"""Plays what a cluster has beside its control plane and its kubelets: Kubernetes' scheduler, a
provisioner of volumes, and the names of Services.

It binds pods in turn to the nodes, without a look at what is free there. A Service's name leads to
the addresses of its ready pods, by a file in the form of /etc/hosts.
"""

import contextlib
import http.client
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from kube_plane import KubePlane

Json = dict[str, Any]
AGAIN_S = 0.5
CLASS, PROVISIONER = "standard", "example/folders"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


class ClusterDouble:
    """Works in a thread, from `start` to `stop`."""

    def __init__(self, plane: KubePlane, home: Path, nodes: Sequence[str]) -> None:
        self.names = home / "hosts"
        self._plane = plane
        self._volumes = home / "volumes"
        self._nodes = cycle(nodes)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._play)

    def start(self) -> None:
        """The cluster has a default storage class."""
        self._volumes.mkdir(parents=True)
        self.names.write_text("127.0.0.1 localhost\n")
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        made = {"metadata": {"name": CLASS, "annotations": default}, "provisioner": PROVISIONER}
        status, answer = self._plane.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", made)
        assert status == http.client.CREATED, answer
        self._thread.start()

    def stop(self) -> None:
        """It does nothing any more."""
        self._stopped.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._stopped.wait(AGAIN_S):
            with contextlib.suppress(OSError, http.client.HTTPException):
                pods = self._all("pods")
                for pod in pods:
                    self._bind(pod)
                for claim in self._all("persistentvolumeclaims"):
                    self._provide(claim)
                for volume in self._all("persistentvolumes"):
                    self._take_back(volume)
                self._publish(pods)

    def _all(self, kind: str) -> list[Json]:
        status, answer = self._plane.ask("GET", f"/api/v1/{kind}")
        return list(answer["items"]) if status == http.client.OK else []

    def _bind(self, pod: Json) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        if "nodeName" in spec or "deletionTimestamp" in metadata:
            return
        target = {"kind": "Node", "name": _node_of_daemon(spec) or next(self._nodes)}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        self._plane.ask("POST", path, {"metadata": {"name": metadata["name"]}, "target": target})

    def _provide(self, claim: Json) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        if "volumeName" in spec or spec.get("storageClassName") != CLASS:
            return
        name = f"pvc-{metadata['uid']}"
        folder = self._volumes / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        reference |= {each: metadata[each] for each in ("namespace", "name", "uid")}
        self._plane.ask(
            "POST",
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
                "spec": {
                    "capacity": spec["resources"]["requests"],
                    "accessModes": spec["accessModes"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": reference,
                    "hostPath": {"path": str(folder)},
                },
            },
        )

    def _take_back(self, volume: Json) -> None:
        if volume["status"].get("phase") == "Released":
            name = volume["metadata"]["name"]
            shutil.rmtree(self._volumes / name, ignore_errors=True)
            self._plane.ask("DELETE", f"/api/v1/persistentvolumes/{name}")

    def _publish(self, pods: Sequence[Json]) -> None:
        lines = ["127.0.0.1 localhost"]
        for service in self._all("services"):
            lines += _lines(service, pods)
        text = "".join(f"{line}\n" for line in lines)
        if text != self.names.read_text():
            # In place: containers have the file mounted. One write leaves no half of it.
            file = os.open(self.names, os.O_WRONLY)
            os.pwrite(file, text.encode(), 0)
            os.ftruncate(file, len(text.encode()))
            os.close(file)


def _node_of_daemon(spec: Json) -> str | None:
    """The node that the DaemonSet's controller means."""
    required = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in terms.get("nodeSelectorTerms", []):
        for field in term.get("matchFields", []):
            return str(field["values"][0])
    return None


def _lines(service: Json, pods: Sequence[Json]) -> Iterator[str]:
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    selector = service["spec"].get("selector")
    names = " ".join((name, *(f"{name}.{namespace}{end}" for end in ("", ".svc"))))
    for pod in pods if selector else ():
        metadata = pod["metadata"]
        is_ours = selector.items() <= metadata.get("labels", {}).items()
        if is_ours and metadata["namespace"] == namespace and _is_ready(pod):
            yield f"{pod['status']['podIP']} {names}"


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]
