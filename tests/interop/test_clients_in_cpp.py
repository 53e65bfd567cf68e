"""Apache's C++ client (the core of rocketmq-client-cpp, as the PyPI package rocketmq 0.4.4 brings it) on our servers.

Its C interface has no SQL92, namespaces, requests, transactions or administration.
"""

import pytest

from tests.interop.every_client import (  # noqa: F401 - what must hold in every language
    test_a_delay_level_is_kept,
    test_a_message_that_fails_comes_again_and_then_is_a_dead_letter,
    test_a_mixed_group_shares_the_queues,
    test_every_member_of_a_broadcasting_group_gets_everything,
    test_it_reads_what_python_sends,
    test_its_pull_consumer_gets_everything,
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
