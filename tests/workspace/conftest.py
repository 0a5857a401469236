import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sandbox_workspace

from tests.workspace.container import Container
from tests.workspace.git_server import GitServer, make_certificate, serve
from tests.workspace.repositories import Hostile, Ordinary, make_ordinary

SYSTEM_PYTHON = "/usr/bin/python3"
UNPRIVILEGED = 12345  # nobody in the password file, as in many a cluster


@pytest.fixture
def container(tmp_path: Path) -> Container:
    base = tmp_path / "container"
    base.mkdir()
    return Container(base)


@pytest.fixture
def user_container() -> Iterator[Container]:
    """The same as an ordinary user, with volumes as the kubelet makes them: root's, and open by their group."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
    )
    if version.stdout.strip() != "True":
        pytest.skip("needs a system Python that other users may start")
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        base.chmod(0o755)
        shutil.copytree(Path(sandbox_workspace.__file__).parent, base / "code/sandbox_workspace")
        container = Container(base, SYSTEM_PYTHON, UNPRIVILEGED, {"PYTHONPATH": str(base / "code")})
        for volume in (container.workspace, container.agent_dir):
            os.chown(volume, 0, UNPRIVILEGED)
            volume.chmod(0o2777)
        yield container


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repositories")


@pytest.fixture(scope="session")
def ordinary(repositories: Path) -> Ordinary:
    made = make_ordinary(repositories / "public/repo")
    shutil.copytree(repositories / "public/repo", repositories / "private/repo", symlinks=True)
    return made


@pytest.fixture(scope="session")
def bait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bait") / "TOUCHED"


@pytest.fixture(scope="session")
def hostile(repositories: Path, bait: Path) -> Hostile:
    (repositories / "public").mkdir(exist_ok=True)
    return Hostile(repositories / "public", bait)


@pytest.fixture
def server(repositories: Path, ordinary: Ordinary) -> Iterator[GitServer]:
    with serve(repositories) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls_server(repositories: Path, ordinary: Ordinary, certificate: tuple[Path, Path]) -> Iterator[GitServer]:
    with serve(repositories, certificate=certificate[1]) as running:
        yield running
