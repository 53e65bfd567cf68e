"""Clients in other languages for the tests: each library fetched and built once into interop/<language>/build, and how to start it.

    Go      interop/go      github.com/apache/rocketmq-client-go/v2, through Go's own proxy settings; `go`
    C++     interop/cpp     the core of rocketmq-client-cpp inside the PyPI package rocketmq; `pip` of this Python, on Linux
    Node    interop/node    the npm package ali-ons; `node` and `npm`

A build is made anew only when a source file changed. A file lock keeps two pytest workers from building at once. What cannot be
had here (no tool, no network) is a reason to skip, and the reason is shown; a source that does not compile is a failure.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.interop.drivers import DrivenClient
from tests.interop.java import fingerprint, locked

_INTEROP: Final = Path(__file__).parents[2] / "interop"
_FETCH_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Language:
    """A client library in one language."""

    name: str
    tools: Sequence[str]
    sources: Sequence[str]
    fetch: Callable[[Path, Path], Sequence[str]]
    """From the folders of sources and of builds: the command that needs the network."""
    compile: Callable[[Path, Path], Sequence[str]] | None
    """The command that does not; None where nothing is compiled."""
    command: Callable[[Path, Path], Sequence[str]]
    """What starts the client."""
    modes: Sequence[str] = ("sync", "async", "oneway", "batch")
    """Its ways of sending."""

    @property
    def folder(self) -> Path:
        return _INTEROP / self.name

    def missing(self) -> str | None:
        """Why this client cannot run here, or None."""
        absent = [tool for tool in self.tools if shutil.which(tool) is None]
        return f"the {self.name} client needs {' and '.join(absent)} on the PATH" if absent else None

    def start(self, home: Path) -> DrivenClient:
        """Start the client with the new folder `home` as its home; skips the test where it cannot be had."""
        if (reason := self.missing()) is not None:
            pytest.skip(reason)
        build = self._built()
        home.mkdir(parents=True)
        return DrivenClient(self.command(self.folder, build), home)

    def _built(self) -> Path:
        build = self.folder / "build"
        build.mkdir(exist_ok=True)
        with locked(build / "lock"):
            stamp = build / "built-from"
            sources = fingerprint(self.folder, [self.folder / name for name in self.sources])
            if not (stamp.exists() and stamp.read_text() == sources):
                try:
                    done = self._run(self.fetch(self.folder, build))
                except subprocess.TimeoutExpired as error:
                    pytest.skip(f"the {self.name} client cannot be fetched: {error}")
                if done.returncode != 0:
                    pytest.skip(f"the {self.name} client cannot be fetched: {(done.stdout + done.stderr)[-400:]}")
                if self.compile is not None:
                    done = self._run(self.compile(self.folder, build))
                    assert done.returncode == 0, done.stdout + done.stderr
                stamp.write_text(sources)
        return build

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
        )


_GO_SOURCES: Final = ("go.mod", "go.sum", "main.go", "messages.go", "producing.go", "consuming.go", "administering.go")

GO: Final = Language(
    name="go",
    tools=("go",),
    sources=_GO_SOURCES,
    fetch=lambda folder, build: ["go", "mod", "download"],
    compile=lambda folder, build: ["go", "build", "-buildvcs=false", "-o", str(build / "client"), "."],
    command=lambda folder, build: [str(build / "client")],
)

CPP: Final = Language(
    name="cpp",
    tools=(),
    sources=("client.py",),
    fetch=lambda folder, build: [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"),
        *("--target", str(build / "site"), "rocketmq==0.4.4"),
    ],
    compile=None,
    command=lambda folder, build: [sys.executable, str(folder / "client.py"), str(build / "site")],
)

NODE: Final = Language(
    name="node",
    tools=("node", "npm"),
    sources=("package.json", "package-lock.json", "client.js"),
    fetch=lambda folder, build: [
        "sh", "-c", 'cp package.json package-lock.json "$0" && cd "$0" && npm ci --no-audit --no-fund', str(build),
    ],
    compile=None,
    command=lambda folder, build: ["node", str(folder / "client.js"), str(build)],
    modes=("sync",),
)  # fmt: skip
