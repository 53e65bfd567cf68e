from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import MessageError
from orbitmq.message.properties import RESERVED, decode_properties, encode_properties, property_finder, property_number

NAMES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)
VALUES = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1, max_size=8)
FRAGMENTS = st.lists(st.sampled_from(["TAGS", "KEYS", "\x01", "\x02", "a", "标"]), max_size=20).map("".join)


def test_writes_name_and_value_with_their_separators() -> None:
    assert encode_properties({"KEYS": "k1", "TAGS": "TagA"}) == b"KEYS\x01k1\x02TAGS\x01TagA\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),  # 4.9 clients leave the last separator out
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("a\x01b\x02a\x01\x02", {"a": "b"}),
        ("\x01b\x02", {}),
        ("a\x01\x02", {}),
        ("ab\x02", {}),
        ("\x02\x02a\x01b\x02", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("标\x01签\x02", {"标": "签"}),
    ],
)
def test_reads_by_the_rules_of_javas_parser(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties
    assert decode_properties(text.encode()) == properties


@pytest.mark.parametrize("properties", [{"a\x02b": "c"}, {"a": "b\x02c"}, {"a\x01b": "c"}])
def test_a_separator_inside_a_property_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError, match="separator"):
        encode_properties(properties)


def test_broken_utf8_is_replaced_and_never_raises() -> None:
    assert decode_properties(b"a\x01\xff\x02") == {"a": "\ufffd"}
    assert encode_properties({"a": "\ud800"}) == b"a\x01?\x02"


@given(st.dictionaries(NAMES, VALUES))
def test_any_map_survives_the_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(FRAGMENTS)
def test_finding_one_property_equals_looking_it_up_in_the_map(text: str) -> None:
    for name in ("TAGS", "KEYS", "a", "标"):
        found = property_finder(name)(text.encode())
        assert (found.decode() if found is not None else None) == decode_properties(text).get(name)


def test_what_is_no_small_number_counts_as_what_is_assumed() -> None:
    other_digits = ["\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}"]
    for text in ["", "-1", "+1", " 1", "1.0", *other_digits, "1" * 10, "1" * 5000]:
        assert property_number(text, 7) == property_number(text.encode(), 7) == 7


def test_a_small_number_is_read() -> None:
    assert property_number(None, 7) == 7
    assert property_number("0", 7) == property_number(b"000", 7) == 0
    assert property_number("1" * 18, 7, 18) == int("1" * 18)


# MessageConst.STRING_HASH_SET of 5.3
JAVAS_RESERVED = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""


def test_the_reserved_names_are_javas() -> None:
    assert set(JAVAS_RESERVED.split()) == RESERVED
