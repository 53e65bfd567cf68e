"""No command is without a test that runs it, as a program, against our servers; and none without one against Apache's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pytest

from orbitmq.cli.entry import cli
from orbitmq.cli.view import FORMATS
from tests.cli import schemas
from tests.cli.story import IN_THE_BACKGROUND, SPARK_FOR_PEOPLE, STORY
from tests.cli.test_acl import GUARDED, ROOT
from tests.cli.tour import Tour, command_in, leaves
from tests.interop import orbit

if TYPE_CHECKING:
    from collections.abc import Iterator

TREE: Final = Path(__file__).parent.parent.parent

# What the story does not hold, and where the program is run instead.
ON_OURS: Final = {
    "dev": "tests/cli/test_dev.py",
    "nameserver": "tests/interop/orbit.py",  # the story's own name server
    "broker": "tests/interop/orbit.py",  # and its broker
}
ON_APACHES: Final = {
    "nameserver": "tests/interop/test_every_command.py",  # Apache's broker registers there
    "broker": "tests/interop/test_every_command.py",  # registers with Apache's name server
}
WITHOUT_APACHES: Final = {"dev": "starts servers of ours"}
# A command that shows something belongs into tests/cli/field_tables.py, not here.
WITHOUT_JSON: Final = {
    "broker", "console", "nameserver", "run", "completion", "pipeline init", "pipeline run",
    "topic create", "topic update", "topic rm", "group create", "group update", "group rm", "group reset", "group clone",
    "dlq resend", "acl grant", "acl revoke", "acl policy grant", "acl policy revoke",
    "acl user create", "acl user update", "acl user rm",
    "spark archive", "spark compact", "spark export-store", "spark replay",
    "mqadmin",  # verb by verb in docs/mqadmin-schemas.json
}  # fmt: skip


def test_every_command_is_run_on_our_servers_and_on_apaches() -> None:
    told = {command_in(typed.text.split()) for typed in STORY} | IN_THE_BACKGROUND
    assert told | ON_OURS.keys() == set(leaves())
    assert told | ON_APACHES.keys() | WITHOUT_APACHES.keys() == set(leaves())
    assert not told & (ON_OURS.keys() | ON_APACHES.keys() | WITHOUT_APACHES.keys())


@pytest.mark.parametrize(("name", "path"), sorted({*ON_OURS.items(), *ON_APACHES.items()}))
def test_where_a_command_is_said_to_be_run_it_is(name: str, path: str) -> None:
    assert f'"{name.split()[-1]}"' in (TREE / path).read_text()


def test_every_command_that_prints_json_says_what() -> None:
    documented = {command_in(name.split()) for name in schemas.DOCUMENTED}
    assert documented | WITHOUT_JSON == set(leaves())
    assert not documented & WITHOUT_JSON
    for name in leaves():
        is_document = name in documented and name not in ("dev", "dlq export")  # have one form only
        assert forms_of(name) == (FORMATS if is_document else ()), name


def forms_of(name: str) -> tuple[str, ...]:
    """What its -o takes."""
    command: click.Command | None = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    kinds = [parameter.type for parameter in command.params if "--output" in parameter.opts]
    return tuple(choice for kind in kinds if isinstance(kind, click.Choice) for choice in kind.choices)


ROW: Final = {"what": "send", "messages": 1, "seconds": 1, "messages_per_second": 1.5, "megabytes_per_second": 0.1,
              "median_ms": 0.1, "p99_ms": 0.1, "max_ms": 0.1}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("bench", [ROW], None),
        ("bench", ROW, "$: {'what': 'send'"),
        ("bench", [{**ROW, "messages": "1"}], "$[0].messages: '1' is no integer"),
        ("bench", [{**ROW, "messages": True}], "$[0].messages: True is no integer"),
        ("bench", [{**ROW, "more": 1}], "$[0]: more is not documented"),
        ("bench", [{key: ROW[key] for key in ROW if key != "what"}], "$[0]: what is missing"),
        ("store repair", {"steps": [], "kept_in": 3}, "$.kept_in: 3 is no string"),
        ("spark dlq", [{"origin_topic": None, "tag": None, "messages": 1, "first": "2026-11-16T08:00:00", "last": "2026-11-16T08:00:00Z",
                        "example_id": None}], "$[0].first: 2026-11-16T08:00:00 does not say its zone"),
    ],
)  # fmt: skip
def test_what_is_not_as_documented_is_seen(name: str, value: Any, problem: str | None) -> None:
    found = list(schemas.problems(value, schemas.DOCUMENTED[name]))
    assert found == [] if problem is None else found[0].startswith(problem), found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """Where they are, and their words for the story."""
    folder = tmp_path_factory.mktemp("every-command")
    with ExitStack() as stack:
        name_server = orbit.start_name_server(folder / "nameserver")
        stack.callback(name_server.process.kill)
        settings = {**GUARDED, "traceTopicEnable": "true"}
        broker = orbit.start_broker(folder / "broker", name_server.address, settings=settings)
        stack.callback(broker.process.kill)
        yield name_server.address, {"broker": broker.name, "store": str(broker.folder / "store")}


@pytest.fixture
def tour(servers: tuple[str, dict[str, str]], tmp_path: Path) -> Tour:
    address, words = servers
    return Tour(address, tmp_path, words, ROOT)


@pytest.mark.timeout(600)
def test_the_story_of_every_command(tour: Tour) -> None:
    tour.tell_everything()


@pytest.mark.timeout(1800)
def test_the_story_of_sparks_commands(tour: Tour) -> None:
    tour.tell_of_spark()
    tour.tell_in_one_process(SPARK_FOR_PEOPLE)
