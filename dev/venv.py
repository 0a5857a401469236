"""Makes the virtual environment of the clone: python3 dev/venv.py. Quick when nothing has changed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 -- said before anything that an older Python cannot read
    sys.exit(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old: use 3.11 or newer.")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dev.local import prerequisites
from dev.local.locations import REPOSITORY, cache
from dev.local.progress import run_long
from dev.local.tool_error import exit_code

VENV = REPOSITORY / ".venv"
EXTRAS = "operator,agents,dev"


def main() -> int:
    """Creates or updates the environment."""
    return exit_code(_provide)


def _provide() -> None:
    wanted = hashlib.sha256(
        b"\0".join([(REPOSITORY / "pyproject.toml").read_bytes(), str(REPOSITORY).encode(), EXTRAS.encode()])
    ).hexdigest()
    stamp = VENV / "installed-for"
    if stamp.exists() and stamp.read_text() == wanted and (VENV / "bin" / "python").exists():
        return
    logs = cache() / "venv"
    if not (VENV / "bin" / "python").exists():
        shutil.rmtree(VENV, ignore_errors=True)
        if (
            subprocess.run(
                [sys.executable, "-c", "import ensurepip"], capture_output=True, check=False
            ).returncode
            != 0
        ):
            prerequisites.need_packages(["python3-venv"], "A virtual environment", logs / "packages.log")
        create = [sys.executable, "-m", "venv", str(VENV)]
        run_long("Creating the virtual environment .venv", create, logs / "venv.log", timeout=300)
    install = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--editable", f".[{EXTRAS}]"]
    step = "Installing the Python packages into .venv (about a minute)"
    run_long(step, install, logs / "pip.log", timeout=1800, cwd=REPOSITORY)
    stamp.write_text(wanted)


if __name__ == "__main__":
    sys.exit(main())
