"""`python -m tests.cli.one_process`: many commands in one process, so that Spark starts once for all of them.

It reads a command as a line of JSON and answers with another: its code, what it printed, and what it said beside that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from click.testing import CliRunner

from orbitmq.cli.entry import cli
from orbitmq.spark.session import start_session
from tests.child import child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parent.parent.parent


@contextmanager
def one_process(
    folder: Path, environment: Mapping[str, str]
) -> Iterator[Callable[[Sequence[str]], subprocess.CompletedProcess[str]]]:
    """Seen from the test: how a command is run there. Spark's JVM has a lot to say, and is not to."""
    log = folder / "spark.log"
    here = {**environment, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        log.open("w") as errors,
        child([sys.executable, "-m", __name__], cwd=folder, env=here, stderr=errors, **pipes) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            print(json.dumps(words), file=asked, flush=True)
            answer = answers.readline()
            assert answer, log.read_text()
            return subprocess.CompletedProcess(words, *json.loads(answer))

        yield run
    assert log.read_text() == ""


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    session = start_session("orbitmq-tour")
    for line in sys.stdin:
        done = CliRunner().invoke(cli, json.loads(line), prog_name="orbitmq")
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), file=answers, flush=True)
    session.stop()


if __name__ == "__main__":
    main()
