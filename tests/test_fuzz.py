"""The fuzz targets run, find nothing in a fixed number of inputs, and would notice a fault."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from fuzz import decoders, mutation, servers

from orbitmq.protocol.frame import FrameDecoder


def test_a_fixed_number_of_inputs_finds_no_fault() -> None:
    assert decoders.run(seed=3, count=400) == 400


def test_the_same_seed_damages_the_same_way() -> None:
    frames = decoders.corpus()
    first, second = (random.Random(5), random.Random(5))
    for _ in range(50):
        data = mutation.mutated(frames, first)
        assert data == mutation.mutated(frames, second)
        assert b"".join(mutation.pieces(data, first)) == b"".join(mutation.pieces(data, second)) == data


def test_damage_reaches_all_depths() -> None:
    """Some inputs break the envelope, some only what is inside it; else the deeper decoders would stay untried."""
    chance, frames = random.Random(1), decoders.corpus()
    outcomes = set()
    for _ in range(300):
        decoder = FrameDecoder()
        outcomes.add((bool(decoder.feed(mutation.mutated(frames, chance))), decoder.failure is None))
    assert outcomes == {(True, True), (True, False), (False, True), (False, False)}


def test_a_fault_is_noticed_and_its_input_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(data: bytes) -> None:
        raise IndexError("a fault")

    monkeypatch.setattr(decoders, "parse_properties", faulty)
    with pytest.raises(IndexError):
        decoders.run(seed=1, count=1)
    assert "bytes.fromhex(" in capsys.readouterr().err


def test_it_runs_from_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.decoders", "--seconds", "0.2", "--seed", "9"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert "no fault" in done.stdout


@pytest.mark.timeout(400)
@pytest.mark.parametrize("guarded", [False, True])
def test_a_live_pair_of_servers_survives_damaged_requests(guarded: bool) -> None:
    report = servers.hunt(10_000, seed=11, guarded=guarded)
    assert report.faults == []
    assert report.frames >= 10_000
    assert report.answers > 1_000  # a connection that is closed for damage may take unread answers along
