"""What the kubelet double gives to a pod's containers: their variables and their volumes.

Volumes of Secrets and ConfigMaps are laid out as kubelet does it, and keep their first content.
"""

import base64
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
EVERYWHERE = "0.0.0.0"
ROUND = "..2026_01_01_00_00_00.1"
"""Kubelet's name for a version of a volume's files has its time."""

Get = Callable[[str], Awaitable[Json]]
Post = Callable[[str, Json], Awaitable[Json]]


@dataclass(frozen=True)
class Inputs:
    """Of one pod. `get` and `post` ask the API server as the pod's node."""

    get: Get
    post: Post
    server: str
    files: Path
    host_paths: Mapping[str, str]
    body: Json
    host_address: str
    address: str

    async def variables(self, container: Json) -> dict[str, str]:
        """The environment, without the image's.

        All pods share one network, so a server there listens at its pod's address alone.
        """
        server = urlsplit(self.server)
        found = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        for source in container.get("envFrom", []):
            found |= (await self._object("configmaps", source["configMapRef"]["name"]))["data"]
        for variable in container.get("env", []):
            text = await self._value(variable)
            known = found | {"$": "$"}
            found[variable["name"]] = re.sub(
                r"\$\((\w+)\)", lambda name, known=known: known.get(name[1], name[0]), text
            )
        return {name: self.address if text == EVERYWHERE else text for name, text in found.items()}

    async def _value(self, variable: Json) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable.get("value", ""))
        if "secretKeyRef" in source:
            key = source["secretKeyRef"]
            secret = await self._object("secrets", key["name"])
            return base64.b64decode(secret["data"][key["key"]]).decode()
        return self._field(source.get("fieldRef", {}).get("fieldPath"))

    def _field(self, path: str | None) -> str:
        metadata = self.body["metadata"]
        fields = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": self.body["spec"]["nodeName"],
            "status.hostIP": self.host_address,
            "status.podIP": self.address,
        }
        if path not in fields:
            raise NotImplementedError(f"the field {path} is unknown to the kubelet double")
        return str(fields[path])

    def empty_directory(self, name: str) -> Path:
        """Where a volume of this name lies."""
        return self.files / "volumes" / "kubernetes.io~empty-dir" / name

    async def mounted(self, mount: Json) -> Path:
        """The folder of a volume. One that is missing gets the volume's own rights."""
        volume = await self.volume(mount["name"])
        folder = volume
        for name in Path(mount.get("subPath", "")).parts:
            folder /= name
            if not folder.exists():
                folder.mkdir()
                folder.chmod(volume.stat().st_mode)
        return folder

    async def volume(self, name: str) -> Path:
        """Where a volume lies on this machine. FileNotFoundError: not there yet."""
        volume = next(each for each in self.body["spec"]["volumes"] if each["name"] == name)
        if "emptyDir" in volume:
            path = self.empty_directory(name)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
        elif "hostPath" in volume:
            given = volume["hostPath"]["path"]
            path = Path(self.host_paths.get(given, given))
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
        elif "persistentVolumeClaim" in volume:
            path = await self._bound(volume["persistentVolumeClaim"]["claimName"])
        else:
            own = volume.get("secret") or volume.get("configMap") or {}
            source = volume.get("projected") or {"sources": [volume]} | own
            path = self.files / "volumes" / "kubernetes.io~projected" / name
            if not path.exists():
                self._lay_out(path, await self._projected(source), source.get("defaultMode", 0o644))
        if not path.exists():
            raise FileNotFoundError(f"{path} of volume {name} does not exist")
        return path

    async def _bound(self, claim_name: str) -> Path:
        claim = await self._object("persistentvolumeclaims", claim_name)
        if claim["status"].get("phase") != "Bound":
            raise FileNotFoundError(f"claim {claim_name} is not bound")
        volume = await self.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return Path((volume["spec"].get("hostPath") or volume["spec"]["local"])["path"])

    async def _projected(self, volume: Json) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for source in volume["sources"]:
            if secret := source.get("secret"):
                given = await self._object("secrets", secret.get("name") or secret["secretName"])
                data = given.get("data", {}).items()
                found |= _chosen(secret, {name: base64.b64decode(text) for name, text in data})
            elif settings := source.get("configMap"):
                given = await self._object("configmaps", settings["name"])
                data = given.get("data", {}).items()
                found |= _chosen(settings, {name: text.encode() for name, text in data})
            elif token := source.get("serviceAccountToken"):
                found[token["path"]] = await self._token(token)
            elif downward := source.get("downwardAPI"):
                for each in downward["items"]:
                    found[each["path"]] = self._field(each["fieldRef"]["fieldPath"]).encode()
            else:
                raise NotImplementedError(f"volume {volume} is unknown to the kubelet double")
        return found

    async def _token(self, asked: Json) -> bytes:
        metadata, account = self.body["metadata"], self.body["spec"]["serviceAccountName"]
        accounts = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts"
        pod = {"apiVersion": "v1", "kind": "Pod"}
        spec = {
            "expirationSeconds": asked["expirationSeconds"],
            "boundObjectRef": pod | {"name": metadata["name"], "uid": metadata["uid"]},
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self.post(f"{accounts}/{account}/token", body)
        return str(answer["status"]["token"]).encode()

    def _lay_out(self, path: Path, content: Mapping[str, bytes], mode: int) -> None:
        """Files behind links; the pod's group owns them."""
        group = self.body["spec"].get("securityContext", {}).get("fsGroup", 0)
        draft = path.with_name(f".{path.name}")
        for name, text in content.items():
            file = draft / ROUND / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
            file.chmod(mode)
            os.chown(file, 0, group)
        (draft / "..data").symlink_to(ROUND)
        for first in {Path(name).parts[0] for name in content}:
            (draft / first).symlink_to(f"..data/{first}")
        draft.rename(path)

    async def _object(self, resource: str, name: str) -> Json:
        namespace = self.body["metadata"]["namespace"]
        return await self.get(f"/api/v1/namespaces/{namespace}/{resource}/{name}")


def _chosen(source: Json, content: dict[str, bytes]) -> dict[str, bytes]:
    if "items" not in source:
        return content
    return {each["path"]: content[each["key"]] for each in source["items"]}
