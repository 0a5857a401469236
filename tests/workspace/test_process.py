import os
import time
from pathlib import Path

import pytest
from sandbox_workspace.process import MAX_OUTPUT, ChildTimeoutError, run


def shell(script: str, seconds: float = 10) -> tuple[int, str, str]:
    finished = run(
        ["sh", "-c", script], cwd=Path("/"), env=dict(os.environ), deadline=time.monotonic() + seconds
    )
    return finished.code, finished.out, finished.err


def test_code_and_streams() -> None:
    assert shell("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")


def test_output_is_bounded_to_its_end() -> None:
    code, out, err = shell("head -c 5000000 /dev/zero | tr '\\0' x; yes | head -c 5000000 >&2; echo end >&2")
    assert code == 0
    assert len(out) == len(err) == MAX_OUTPUT
    assert err.endswith("end\n")


@pytest.mark.parametrize(
    "script", ["sleep 60", "exec 1>&- 2>&-; sleep 60", "yes", "sleep 60 & exit 0", "trap '' TERM; sleep 60"]
)
def test_a_deadline_ends_it_with_all_its_children(script: str) -> None:
    started = time.monotonic()
    with pytest.raises(ChildTimeoutError):
        shell(script, 0.3)
    assert time.monotonic() - started < 2


def test_a_child_left_in_the_background_does_not_outlive_the_call() -> None:
    code, out, _ = shell("sleep 61 >/dev/null 2>&1 & echo $!")
    assert code == 0
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{int(out)}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
    pytest.fail("it lives")
