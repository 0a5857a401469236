"""Builds images and brings them to a cluster; names say the content, so that nothing is built twice."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dev.local import base_tree, binaries, choice, current, image_context, kind, native, prerequisites
from dev.local.archive import machine_architecture
from dev.local.locations import REPOSITORY, cache
from dev.local.progress import run_long, say
from dev.local.tool_error import ToolError

Image = Literal["operator", "workspace", "demo"]
IMAGES: tuple[Image, ...] = ("demo", "workspace", "operator")

CONTEXT = REPOSITORY / "build" / "image"
DOCKER_PYTHON = "3.13"
"""The Python of the default BASE in operator/Dockerfile."""

_DOCKERFILES: dict[Image, Path] = {
    "operator": REPOSITORY / "operator" / "Dockerfile",
    "workspace": REPOSITORY / "operator" / "Dockerfile",
    "demo": REPOSITORY / "dev" / "demo.Dockerfile",
}
_KEPT_ARCHIVES = 2


def provide(target: choice.Cluster) -> dict[str, str]:
    """Builds what is missing, brings it to the cluster, and records the names in its state folder."""
    with binaries.locked(cache() / "images" / "images.lock", "the build of the images"):
        names = (
            _provide_native(target) if isinstance(target, native.NativeCluster) else _provide_docker(target)
        )
    record = target.state / "images.json"
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps(names, indent=2) + "\n")
    partial.replace(record)
    return names


def fill_context(architectures: Sequence[str], python: str) -> Path:
    """Fills the folder that a Docker build of operator/Dockerfile takes as its context."""
    image_context.fill(CONTEXT, architectures, python)
    return CONTEXT


def reference(image: Image, base: str, prefix: str = "sandbox-operator") -> str:
    """The name of an image, with a hash of all that goes into it."""
    parts = [image, base, machine_architecture(), _DOCKERFILES[image].read_text()]
    files: list[Path] = []
    if image == "operator":
        parts += image_context.requirements()
        files = image_context.sources_of("sandbox_api") + image_context.sources_of("sandbox_operator")
    elif image == "workspace":
        files = image_context.sources_of_agent() + image_context.sources_of("sandbox_workspace")
    return f"{prefix}/{image}:dev-{image_context.digest(parts, files)}"


def _provide_native(target: native.NativeCluster) -> dict[str, str]:
    base = base_tree.key()
    names = {image: reference(image, base) for image in IMAGES}
    there = target.images()
    # containerd puts a registry before the names of images that have none
    missing = [
        image for image in IMAGES if not any(f"/{each}".endswith(f"/{names[image]}") for each in there)
    ]
    builder: Buildah | None = None
    for image in missing:
        archive = _archive(names[image])
        if not archive.exists():
            builder = builder or Buildah()
            builder.build(image, names[image], base)
            builder.save(names[image], archive)
        say(f"Loading the image {names[image]} into the cluster {target.name} …")
        target.load_image(archive)
        _keep_newest(image)
    return {str(image): name for image, name in names.items()}


def _provide_docker(target: choice.Cluster) -> dict[str, str]:
    """Docker builds where it answers; for a cluster that is not ours, buildah can build and push as well."""
    pushed = isinstance(target, current.CurrentCluster)
    if pushed and not choice.docker_answers():
        return _push_with_buildah()
    base = f"docker-{DOCKER_PYTHON}"
    prefix = current.image_prefix() if pushed else "sandbox-operator"
    names = {image: reference(image, base, prefix) for image in IMAGES}
    log = cache() / "images" / "docker.log"
    for image, name in names.items():
        if _quiet(["docker", "image", "inspect", name]) != 0:
            command = ["docker", "build", "--tag", name, *_build_arguments(image, DOCKER_PYTHON)]
            run_long(f"Building the image {name}", command, log, timeout=1800)
        if pushed:
            run_long(f"Pushing the image {name}", ["docker", "push", name], log, timeout=1800)
        elif isinstance(target, kind.KindCluster):
            load = [kind.program(), "load", "docker-image", name, "--name", target.kind_name]
            run_long(f"Loading the image {name} into kind", load, log, timeout=600)
    return {str(image): name for image, name in names.items()}


def _push_with_buildah() -> dict[str, str]:
    prefix = current.image_prefix()
    base = base_tree.key()
    names = {image: reference(image, base, prefix) for image in IMAGES}
    builder = Buildah()
    for image, name in names.items():
        builder.build(image, name, base)
        say(f"Pushing the image {name} …")
        builder.push(name)
    return {str(image): name for image, name in names.items()}


def _build_arguments(image: Image, python: str) -> list[str]:
    """What Docker and buildah are told alike. The context is filled for each: quick, never stale."""
    arguments = ["--file", str(_DOCKERFILES[image]), "--build-arg", f"TARGETARCH={machine_architecture()}"]
    if image == "demo":
        return [*arguments, str(_DOCKERFILES[image].parent)]
    image_context.fill(CONTEXT, [machine_architecture()], python)
    return [*arguments, "--target", image, str(CONTEXT)]


class Buildah:
    """Builds a Dockerfile without any engine; its storage lies in our cache, apart from the machine's own."""

    def __init__(self) -> None:
        prerequisites.need_root("Building images without a Docker engine")
        log = cache() / "images" / "packages.log"
        prerequisites.need_packages(
            prerequisites.IMAGE_PACKAGES, "Building images without a Docker engine", log
        )
        for driver in (
            "overlay",
            "vfs",
        ):  # overlay is many times quicker, and not possible on every file system
            storage = cache() / "images" / f"buildah-{driver}"
            self._command = ["buildah", "--storage-driver", driver, "--root", str(storage / "root")]
            self._command += ["--runroot", str(storage / "run")]
            probe = self._run("from", "--pull-never", "scratch", check=False)
            if probe.returncode == 0:
                mounted = self._run("mount", probe.stdout.strip(), check=False)
                self._run("rm", probe.stdout.strip())
                if mounted.returncode == 0:
                    return
        raise ToolError(f"buildah cannot make images here: {(probe.stderr or mounted.stderr).strip()[-300:]}")

    def need_base(self, key: str) -> str:
        """The base image made from distribution packages, which is made if it is not there."""
        name = f"localhost/sandbox-operator-base:{key}"
        if self._run("inspect", "--type", "image", name, check=False).returncode == 0:
            return name
        archive = cache() / "images" / f".base-{key}.tar"
        try:
            base_tree.write_archive(archive)
            container = self._run("from", "--pull-never", "scratch").stdout.strip()
            self._run("add", "--quiet", container, str(archive), "/")
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            self._run("config", "--env", path, "--cmd", "/bin/bash", container)
            self._run("commit", "--quiet", "--rm", container, name)
        finally:
            archive.unlink(missing_ok=True)
        return name

    def build(self, image: Image, name: str, key: str) -> None:
        """Builds an image of ours under a name."""
        base = self.need_base(key)
        arguments = _build_arguments(image, base_tree.python_version())
        say(f"Building the image {name} …")
        self._run("bud", "--quiet", "--pull-never", "--tag", name, "--build-arg", f"BASE={base}", *arguments)

    def save(self, name: str, archive: Path) -> None:
        """Writes an image as an archive that containerd can import; never half a file."""
        partial = archive.with_name(f".{archive.name}")
        partial.unlink(missing_ok=True)
        self._run("push", "--quiet", name, f"docker-archive:{partial}:{name}")
        self._run("rmi", name)  # the archive has it, the base stays
        partial.replace(archive)

    def push(self, name: str) -> None:
        """Pushes an image to the registry in its name."""
        self._run("push", "--quiet", name)

    def _run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        command = [*self._command, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=1800, env=environment
        )
        if check and done.returncode != 0:
            raise ToolError(
                f"{done.stderr.strip()[-2000:]}\nbuildah {arguments[0]} failed: what it said is above."
            )
        return done


def _archive(name: str) -> Path:
    image, _, tag = name.rpartition("/")[2].partition(":")
    return cache() / "images" / f"{image}-{tag}.tar"


def _keep_newest(image: Image) -> None:
    """Archives are big: only the latest few of each image stay, for another cluster or a step back."""
    archives = sorted((cache() / "images").glob(f"{image}-dev-*.tar"), key=lambda f: f.stat().st_mtime)
    for old in archives[:-_KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)


def _quiet(command: Sequence[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode
