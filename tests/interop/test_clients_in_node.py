"""A Node client of the remoting protocol, the npm package ali-ons 3.12.0, on our name server and our broker.

It has no one-way or batch sends, orderly consumers, pull consumers, transactions, requests or administration.
"""

import pytest

from tests.interop.every_client import (  # noqa: F401 - what must hold in every language
    test_a_delay_level_is_kept,
    test_a_message_that_fails_comes_again_and_then_is_a_dead_letter,
    test_a_mixed_group_shares_the_queues,
    test_a_namespace_keeps_topics_and_groups_apart,
    test_a_sql92_filter_matches,
    test_every_member_of_a_broadcasting_group_gets_everything,
    test_it_reads_what_python_sends,
    test_its_signature_is_understood_and_a_wrong_one_refused,
    test_python_reads_what_it_sends,
)
from tests.interop.languages import NODE, Language
from tests.interop.marks import OTHER_LANGUAGES

pytestmark = OTHER_LANGUAGES


@pytest.fixture(scope="module")
def language() -> Language:
    return NODE
