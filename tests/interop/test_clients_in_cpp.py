"""Apache's C++ client (the core of rocketmq-client-cpp, as the PyPI package rocketmq 0.4.4 brings it) on our servers.

Its C interface has no SQL92, namespaces, requests, transactions or administration.
"""

from collections.abc import Iterator

import pytest

from tests.interop.crossed import texts_of
from tests.interop.drivers import DrivenClient
from tests.interop.every_client import (  # noqa: F401 - what must hold in every language
    SECONDS,
    test_a_delay_level_is_kept,
    test_a_message_that_fails_comes_again_and_then_is_a_dead_letter,
    test_a_mixed_group_shares_the_queues,
    test_every_member_of_a_broadcasting_group_gets_everything,
    test_it_reads_what_python_sends,
    test_its_signature_is_understood_and_a_wrong_one_refused,
    test_order_is_kept_from_sender_to_consumer,
    test_python_reads_what_it_sends,
)
from tests.interop.languages import CPP, Language
from tests.interop.marks import OTHER_LANGUAGES

pytestmark = OTHER_LANGUAGES


@pytest.fixture(scope="module")
def language() -> Language:
    return CPP


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenClient]:
    guest = CPP.start(tmp_path_factory.mktemp("cpp") / "client")
    yield guest
    guest.close()


@pytest.fixture
def modes() -> tuple[str, ...]:
    return ("sync", "async", "oneway", "batch")


def test_its_pull_consumer_gets_everything(name_server: str, topic: str, guest: DrivenClient) -> None:
    guest.open_producer(f"{topic}-p", name_server)
    guest.send(f"{topic}-p", topic, [{"text": str(number)} for number in range(8)])
    guest.open_pull_consumer(topic, name_server, topic)
    assert texts_of(guest.poll(topic, 8, SECONDS)) == [str(number) for number in range(8)]
    for opened in (f"{topic}-p", topic):
        guest.close_one(opened)
