"""Frames recorded from Apache's own programs; see golden/frames/README.md for their origin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden" / "frames"


@dataclass(frozen=True, slots=True)
class GoldenFrame:
    source: str
    sender: str
    code: int
    is_response: bool
    to_code: int | None
    note: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.source}: {self.sender} {self.note}"


@cache
def golden_frames() -> tuple[GoldenFrame, ...]:
    """Every recorded remoting frame; the raw replication stream (`ha`) is not made of frames and is left out."""
    frames = []
    for path in sorted(_FOLDER.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["from"] == "ha":
                continue
            frames.append(
                GoldenFrame(
                    source=path.stem,
                    sender=entry["from"],
                    code=entry["code"],
                    is_response=entry["response"],
                    to_code=entry.get("to_code"),
                    note=entry["note"],
                    data=bytes.fromhex(entry["hex"]),
                )
            )
    return tuple(frames)
