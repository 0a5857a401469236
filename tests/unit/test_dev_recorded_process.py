"""Processes that are found again by number, start time and boot."""

import dataclasses
import os
import sys
from pathlib import Path

from dev.local.recorded_process import RecordedProcess, all_recorded, start_recorded

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def test_a_process_is_found_again_and_ended(tmp_path: Path) -> None:
    start_recorded(tmp_path, "sleeper", SLEEP, tmp_path / "log")
    found = RecordedProcess.read(tmp_path, "sleeper")
    assert found is not None
    assert found.alive()
    assert all_recorded(tmp_path) == [found]
    assert found.end()
    assert not found.alive()
    assert found.end(), "ending it twice is as good"


def test_a_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    process = start_recorded(tmp_path, "stubborn", STUBBORN, tmp_path / "log")
    while not (tmp_path / "log").read_text():
        assert process.alive()
    assert process.end(grace=0.2)
    assert not process.alive()


def test_another_process_with_the_number_is_left_alone(tmp_path: Path) -> None:
    ours = RecordedProcess.of(os.getpid())
    for stranger in (dataclasses.replace(ours, started="1"), dataclasses.replace(ours, boot="another")):
        assert not stranger.alive()
        assert stranger.end(), "and this test is still running"


def test_a_record_that_is_missing_or_broken_is_none(tmp_path: Path) -> None:
    assert RecordedProcess.read(tmp_path, "none") is None
    (tmp_path / "torn.process.json").write_text('{"pid": 1')
    assert RecordedProcess.read(tmp_path, "torn") is None
    assert all_recorded(tmp_path) == []
