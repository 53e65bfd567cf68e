"""Commands that people are shown exist: in the documents, and in the cures that error messages name."""

from __future__ import annotations

import re
import shlex
from itertools import dropwhile, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pytest

from orbitmq.cli.entry import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent.parent
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*.md")])
SOURCES: Final = sorted((ROOT / "src").rglob("*.py"))
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"`(orbitmq [^`\n]+)`")


def shown_in(document: str) -> Iterator[list[str]]:
    """The words of what is typed in a shell, block by block, and of what stands in the text between backticks."""
    for language, block in _FENCE.findall(document):
        if language in ("", "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from _programs(line)
    for span in _SPAN.findall(_FENCE.sub("", document)):
        yield shlex.split(span)


def _programs(line: str) -> Iterator[list[str]]:
    """Those of a line that are ours, without what is set for them."""
    lexer = shlex.shlex(line.replace('"$(', "; ").replace(')"', ""), posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # no command: a line of output, with an apostrophe
        return
    for is_between, some in groupby(words, key=lambda word: set(word) <= set("|;&>")):
        typed = list(dropwhile(lambda word: word == "$" or "=" in word, some))
        if not is_between and len(typed) > 1 and typed[0] == "orbitmq" and typed[1][:1].islower():
            yield typed


def problem_of(typed: list[str]) -> str:
    """Why this cannot be typed; empty if it can. Words in capitals, and dots, stand for what the reader puts there."""
    command: click.Command = cli
    context = click.Context(cli, info_name="orbitmq")
    options = _options(cli)
    words = iter(typed[1:])
    for word in words:
        if word == "...":
            return ""
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            if name in ("-h", "--help"):
                continue
            if name not in options:
                return f"{command.name} has no option {name}"
            if not equals and not options[name].is_flag and not options[name]._flag_needs_value:
                next(words, None)
        elif isinstance(command, click.Group) and not word.isupper():
            found = [command.get_command(context, one) for one in word.split("|")]
            if None in found:
                return f"{command.name} has no command {word}"
            command = found[0]  # type: ignore[assignment]
            options |= _options(command)
    return ""


def _options(command: click.Command) -> dict[str, click.Option]:
    return {
        name: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_document_can_be_typed(path: Path) -> None:
    wrong = {" ".join(typed): problem for typed in shown_in(path.read_text()) if (problem := problem_of(typed))}
    assert wrong == {}


def test_every_cure_that_a_message_names_can_be_typed() -> None:
    shown = {(path.name, text) for path in SOURCES for text in _SPAN.findall(path.read_text())}
    assert len(shown) > 40
    wrong = {}
    for name, text in sorted(shown):
        if problem := problem_of(shlex.split(re.sub(r"\{[^}]*\}", "X", text))):
            wrong[name, text] = problem
    assert wrong == {}


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ("orbitmq topic lst", "topic has no command lst"),
        ("orbitmq topic ls --al", "ls has no option --al"),
        ("orbitmq group lag G --queues --where 'lag>0' -o json", ""),
        ("orbitmq mqadmin topicLists", "mqadmin has no command topicLists"),
        ("orbitmq mqadmin VERB", ""),
        ("orbitmq completion bash|zsh", ""),
        ("orbitmq broker --set a=b -c x.conf", ""),
    ],
)
def test_what_does_not_exist_is_found(shown: str, problem: str) -> None:
    assert problem_of(shlex.split(shown)) == problem


def test_commands_are_found_wherever_they_stand() -> None:
    text = (
        "Try `orbitmq dev`.\n```\nseq 9 | orbitmq msg send T   # all\n$ orbitmq topic ls -a; orbitmq cluster\n"
        "orbitmq topic tail T --sql 'a > 1' -n X\neval \"$(orbitmq completion bash)\"\nA=b orbitmq acl ls\n```\n"
    )
    assert [" ".join(typed) for typed in shown_in(text)] == [
        "orbitmq msg send T",
        "orbitmq topic ls -a",
        "orbitmq cluster",
        "orbitmq topic tail T --sql a > 1 -n X",
        "orbitmq completion bash",
        "orbitmq acl ls",
        "orbitmq dev",
    ]
