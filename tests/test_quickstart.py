"""The pages for newcomers, word by word: what they tell to type runs, and does what they say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import pytest

import orbitmq
from orbitmq.cli.topics_file import read_topics_file
from orbitmq.testing import Server

pytest_plugins = ["pytester"]

ROOT: Final = Path(__file__).parent.parent
# The reference shows signatures, made from the code.
PAGES: Final = sorted({ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "api.md"})


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_quick_start_sends_and_receives(mq_server: Server, tmp_path: Path) -> None:
    program, _ = blocks(ROOT / "docs" / "quickstart.md", "python")
    (tmp_path / "first.py").write_text(program.replace("127.0.0.1:9876", mq_server.address))
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout == "b'hello'\n"
    (topics,) = blocks(ROOT / "docs" / "quickstart.md", "toml")
    (tmp_path / "topics.toml").write_text(topics)
    assert [plan.name for plan in read_topics_file(tmp_path / "topics.toml")] == ["Orders", "Steps"]


@pytest.mark.timeout(300)
def test_the_tests_on_the_pages_pass(pytester: pytest.Pytester) -> None:
    _, first = blocks(ROOT / "docs" / "quickstart.md", "python")
    others, _ = blocks(ROOT / "docs" / "testing.md", "python")
    pytester.makepyfile(test_first=first, test_others=others)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=1 + len(re.findall(r"^(?:async )?def test_", others, re.MULTILINE)))


class Order(msgspec.Struct):
    id: int = 7


@pytest.mark.parametrize("heading", ["Sending", "Transactions", "Reading at your own pace"])
async def test_what_the_page_of_the_client_shows_runs_as_it_stands(heading: str) -> None:
    async def anything(*_: object) -> None:
        pass

    _, section = (ROOT / "docs" / "client.md").read_text().split(f"\n## {heading}\n")
    block = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    with Server(settings={"recallMessageEnable": "true"}) as server:
        async with orbitmq.connect(server.address) as client, client.producer(group="others") as producer:
            await producer.send_batch("Orders", [b"a", b"b"])
            names = {
                "mq": orbitmq, "client": client, "Order": Order, "order": Order(), "timedelta": timedelta,
                "yesterday": datetime.now(UTC) - timedelta(days=1), "charge_card": anything, "load": anything,
            }  # fmt: skip
            shown = compile(block, heading, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            async with asyncio.timeout(60):
                await eval(shown, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_is_python_and_names_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = compile(block, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mq":
                assert hasattr(orbitmq, node.attr), f"orbitmq has no {node.attr}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orbitmq"):
                module = __import__(str(node.module), fromlist=["_"])
                for name in node.names:
                    assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def test_what_a_page_gets_wrong_is_found(tmp_path: Path) -> None:
    for wrong in ("mq.conect()", "from orbitmq.sync import conect", "def ("):
        (tmp_path / "page.md").write_text(f"```python\nimport orbitmq as mq\n{wrong}\n```\n")
        with pytest.raises((AssertionError, SyntaxError)):
            inspect.unwrap(test_python_on_a_page_is_python_and_names_what_exists)(tmp_path / "page.md")
