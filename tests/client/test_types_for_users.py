"""What a user's editor says: modules that use the public face rightly pass both type checkers, wrong uses are found."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
RIGHT = [ROOT / "tests" / "client" / "typed_user.py", *sorted((ROOT / "examples").glob("*.py"))]
# One mistake a line; every line must be found, and only these.
WRONG = """\
import orbitmq as mq
from orbitmq import sync


async def main(client: mq.Client, blocking: sync.Client, message: mq.ReceivedMessage) -> None:
    producer = client.producer(group=1)  # wrong
    await producer.send("T", b"x", tga="a")  # wrong
    (await producer.send("T", b"x")).message_id + 1  # wrong
    client.consumer("T", group="g", start="sometimes")  # wrong
    message.queue_offset.lower()  # wrong
    blocking.producer("P").send("T", b"x", tga="a")  # wrong
    blocking.producer("P").send("T", b"x").message_id + 1  # wrong
    for leased in blocking.lease_consumer("T", group="g"):
        leased.extend(3)  # wrong
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user's own, outside of this repository."""
    for module in RIGHT:
        shutil.copy(module, tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


def assert_found(errors: set[tuple[str, int]], output: str) -> None:
    wanted = {("wrong.py", number) for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert errors == wanted, output


def test_pyright_passes_what_is_right_and_finds_what_is_wrong(project: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "include": ["."], "typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(SOURCES)],
        "reportUnusedExpression": False,
    }  # fmt: skip
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*checker, "-p", str(project)], capture_output=True, text=True, timeout=280)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(RIGHT) + 1, done.stdout
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in report["generalDiagnostics"]}
    assert_found(found, done.stdout)


def test_mypy_passes_what_is_right_and_finds_what_is_wrong(project: Path) -> None:
    files = [
        module.name for module in RIGHT if module.name != "demo.py"
    ]  # which needs all of Spark; `make check` has it
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent", *files, "wrong.py"],
        capture_output=True, text=True, timeout=280, cwd=project, env={**os.environ, "MYPYPATH": str(SOURCES)},
    )  # fmt: skip
    found = re.findall(r"^([\w/.]+):(\d+): error", done.stdout, re.M)
    assert_found({(name, int(line)) for name, line in found}, done.stdout + done.stderr)
