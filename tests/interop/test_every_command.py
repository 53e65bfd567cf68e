"""The story of every command (tests/cli/story.py) on Apache's name server and broker; and our servers among Apache's."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.cli.story import Typed
from tests.cli.tour import Tour
from tests.interop import apache, orbit
from tests.interop.apache import BrokerPlan
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.test_access_control import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.interop.apache import NameServer

pytestmark = INTEROP


@dataclass(frozen=True, slots=True)
class Mixed:
    """Apache's broker, registered with Apache's name server and with ours."""

    theirs: NameServer
    ours: NameServer
    words: dict[str, str]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("every-command")
    java = build("5.3.3")
    with ExitStack() as stack:
        theirs = apache.start_name_server(java, folder / "namesrv")
        stack.callback(theirs.process.kill)
        ours = orbit.start_name_server(folder / "nameserver")
        stack.callback(ours.process.kill)
        settings: dict[str, str | int] = {**PROVIDERS, **apache.SELDOM_SAVED, "traceTopicEnable": "true"}
        plan = BrokerPlan(
            name="broker-a", cluster="cluster-a", name_servers=[theirs.address, ours.address], settings=settings
        )
        broker = apache.start_broker(java, folder / "broker", plan)
        stack.callback(broker.process.kill)
        words = {"broker": broker.name, "store": str(broker.folder / "store")}
        yield Mixed(theirs, ours, words)


def test_the_story_of_every_command(mixed: Mixed, tmp_path: Path) -> None:
    Tour(mixed.theirs.address, tmp_path, mixed.words).tell_everything()


@pytest.mark.timeout(1800)
def test_the_story_of_sparks_commands(mixed: Mixed, tmp_path: Path) -> None:
    Tour(mixed.theirs.address, tmp_path, mixed.words).tell_of_spark(in_one_process=True)


def test_our_name_server_knows_apaches_broker_and_apaches_knows_ours(mixed: Mixed, tmp_path: Path) -> None:
    """What `orbitmq "nameserver"` and `orbitmq "broker"` started, seen by the command."""
    Tour(mixed.ours.address, tmp_path / "ours", mixed.words).type(Typed("broker ls -o json", '"{broker}"'))
    joined = orbit.start_broker(tmp_path / "joined", mixed.theirs.address, name="joined")
    try:
        tour = Tour(mixed.theirs.address, tmp_path / "theirs", {**mixed.words, "joined": joined.name})
        tour.type(Typed("broker ls --where problem= -o json", '"{joined}"'))
        tour.type(Typed("topic create {topic} -b {joined}", "{topic}"))
        tour.type(Typed("msg send {topic} hello -o json", '"SEND_OK"'))
    finally:
        joined.process.kill()
