from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orbitmq.errors import BodyError
from orbitmq.fastjson import (
    MAX_DEPTH,
    MAX_REFERENCE_STEPS,
    MAX_TOKENS,
    MAX_TOKENS_ASKED_FOR,
    ObjectKey,
    dumps,
    loads,
)
from orbitmq.protocol.bodies.offsets import ConsumerStatusBody, ConsumeStats
from orbitmq.protocol.bodies.registration import Listing


class Queue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    topic: str
    queue_id: int
    broker_name: str = ""


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
).filter(lambda value: "$ref" not in repr(value))


@given(JSON)
def test_strict_json_reads_as_json_does(value: Any) -> None:
    assert loads(json.dumps(value).encode()) == value
    assert loads(dumps(value)) == value


@given(JSON)
def test_the_tolerant_reader_agrees_with_json_on_strict_json(value: Any) -> None:
    # A trailing comma keeps the two quick ways from taking it.
    assert loads(b"[" + json.dumps(value).encode() + b" , ]") == [value]


@given(st.dictionaries(st.integers(), st.integers(-(2**63), 2**63), max_size=8))
def test_bare_integer_keys_survive_the_round_trip(table: dict[int, int]) -> None:
    text = dumps({"offsetTable": table}, bare_int_keys=True)
    assert text == ('{"offsetTable":{' + ",".join(f"{key}:{value}" for key, value in table.items()) + "}}").encode()
    assert loads(text) == {"offsetTable": {str(key): value for key, value in table.items()}}
    assert loads(text, dict[str, dict[int, int]]) == {"offsetTable": table}


@given(st.dictionaries(st.builds(Queue, st.text(), st.integers(0, 2**31 - 1), st.text()), st.integers(0, 2**63 - 1)))
def test_maps_keyed_by_objects_survive_the_round_trip(table: dict[Queue, int]) -> None:
    assert loads(dumps(table), dict[Queue, int]) == table
    assert loads(dumps(table, bare_int_keys=True), dict[Queue, int]) == table
    assert loads(dumps(loads(dumps(table))), dict[Queue, int]) == table


@given(st.text(max_size=60) | st.text(alphabet="{}[]:,'\"\\0u1$ref. ab-", max_size=60))
@example("{")
@example('{"a":1')
@example('{"a" 1}')
@example("[1 2]")
@example("[,]")
@example("{1}")
@example('{"$ref":"$"}')
def test_any_text_is_a_value_or_a_body_error(text: str) -> None:
    with contextlib.suppress(BodyError):
        loads(text.encode("utf-8", "replace"))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_body_error(data: bytes) -> None:
    with contextlib.suppress(BodyError):
        loads(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:250,1:-3,\n\t2 : 4}", {"0": 250, "1": -3, "2": 4}),
        ("{-1:0}", {"-1": 0}),
        ('{"a,5:":"{1:2}",5:"\\"{7:8}"}', {"a,5:": "{1:2}", "5": '"{7:8}'}),
        ("{name:'it\\'s',other_name:\"x\",}", {"name": "it's", "other_name": "x"}),
        ("[1,2,]", [1, 2]),
        ("{a:[true,false,null,],}\n", {"a": [True, False, None]}),
        ("{a:1L,b:2.5D,c:1e3,d:-0.5,e:3F}", {"a": 1, "b": 2.5, "c": 1000.0, "d": -0.5, "e": 3.0}),
        (r"{a:'\x41\u4e2d\ud83d\ude00\v\/'}", {"a": "A中😀\v/"}),
        (r"{a:'\ud83d'}", {"a": "\ufffd"}),
        ("{'raw\ttab\nand line':1}", {"raw\ttab\nand line": 1}),
        ("{%RETRY:1}".replace("%", "$"), {"$RETRY": 1}),
        (' {"a":1} \n', {"a": 1}),
        ("{名:1}", {"名": 1}),
    ],
)
def test_reads_what_fastjson_writes_and_accepts(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_an_object_as_a_key_can_be_looked_up_and_hashed() -> None:
    read = loads(b'{{"brokerName":"a","queueId":0,"topic":"t"}:{"offset":5},{"tags":["x",{"y":1}]}:2}')
    key = ObjectKey({"topic": "t", "queueId": 0, "brokerName": "a"})
    assert read[key] == {"offset": 5}
    assert key["topic"] == "t"
    assert len(key) == 3
    assert set(key) == {"topic", "queueId", "brokerName"}
    assert read[ObjectKey({"tags": ["x", {"y": 1}]})] == 2
    assert repr(ObjectKey({"a": 1})) == "ObjectKey({'a': 1})"


def test_object_keys_are_written_as_java_writes_them() -> None:
    assert dumps({Queue("t", 3): 5}) == b'{{"topic":"t","queueId":3}:5}'
    assert dumps({ObjectKey({"a": (1, None)}): [1.5, "é"]}) == '{{"a":[1,null]}:[1.5,"é"]}'.encode()
    assert dumps({Queue("t", 0): {2: [{3: Queue("u", 1, "b")}]}}, bare_int_keys=True) == (
        b'{{"topic":"t","queueId":0}:{2:[{3:{"topic":"u","queueId":1,"brokerName":"b"}}]}}'
    )
    assert dumps({Queue("t", 0): {2: True}}) == b'{{"topic":"t","queueId":0}:{"2":true}}'


def test_integer_keys_are_quoted_unless_asked_for_bare() -> None:
    assert dumps({1: {2: "x"}}) == b'{"1":{"2":"x"}}'
    assert dumps({1: {2: "x"}}, bare_int_keys=True) == b'{1:{2:"x"}}'


def test_what_json_cannot_say_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()}, bare_int_keys=True)


def test_numbers_in_strings_become_numbers_when_the_shape_says_so() -> None:
    assert loads(b'{"topic":"t","queueId":"7"}', Queue) == Queue("t", 7)
    assert loads(b"{topic:'t',queueId:'7'}", Queue) == Queue("t", 7)


def test_another_shape_is_a_body_error() -> None:
    with pytest.raises(BodyError, match="another shape"):
        loads(b'{"topic":1}', Queue)
    with pytest.raises(BodyError, match="another shape"):
        loads(b"{topic:1}", Queue)


def test_references_lead_to_what_stood_before() -> None:
    text = b'{"a":{"x":[1,{"y":2}]},"b":{"$ref":"$.a"},"c":[{"$ref":"$.a.x[1]"},{"$ref":"$.b.x[0]"}],5:{"z":7},"d":{"$ref":"$[5]"}}'
    read = loads(text)
    assert read["b"] == {"x": [1, {"y": 2}]}
    assert read["c"] == [{"y": 2}, 1]
    assert read["d"] == {"z": 7}


def test_reference_steps_may_be_quoted_or_escaped() -> None:
    text = rb'{"a.b":{"x":1},"c":{"$ref":"$.a\\.b"},"d":{"$ref":"$[\"a.b\"]"},"e":{"$ref":"$[' + b"'a.b'" + rb']"}}'
    read = loads(text)
    assert read["c"] == read["d"] == read["e"] == {"x": 1}


def test_a_member_called_ref_beside_others_is_a_member() -> None:
    assert loads(b'{"a":{"$ref":"$.x","b":1},"c":{"$ref":5}}') == {"a": {"$ref": "$.x", "b": 1}, "c": {"$ref": 5}}


@pytest.mark.parametrize(
    "text",
    [
        b'{"$ref":"$"}',
        b'{"a":{"$ref":"$"}}',
        b'{"a":{"b":{"$ref":"$.a"}}}',
        b'{"a":{"$ref":".."}}',
        b'{"a":{"$ref":"@"}}',
        b'{"a":{"$ref":"$.nowhere"}}',
        b'{"a":[1],"b":{"$ref":"$.a[9]"}}',
        b'{"a":1,"b":{"$ref":"$.a.b"}}',
        b'{"a":1,"b":{"$ref":"$]"}}',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
    ],
)
def test_references_to_nowhere_or_in_circles_are_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        loads(text)


def test_references_cannot_be_made_to_multiply() -> None:
    levels = ['"a0":[1,1,1,1,1,1,1,1,1,1]']
    levels += [f'"a{up}":[' + ",".join([f'{{"$ref":"$.a{up - 1}"}}'] * 10) + "]" for up in range(1, 30)]
    with pytest.raises(BodyError, match="multiply"):
        loads(("{" + ",".join(levels) + "}").encode())


def test_references_through_references_are_followed_once_each() -> None:
    """Followed anew each time, every entry doubled the work: these sixty would take longer than the sun lasts."""
    chain = {f"b{up}": {"$ref": f"$.H.b{up - 1}.b{up - 1}"} for up in range(60, 1, -1)}
    with pytest.raises(BodyError, match="a reference to something around it"):
        loads(json.dumps({"H": {**chain, "b1": {"$ref": "$.H"}}}).encode())


def test_a_chain_of_references_that_share_their_way_is_read() -> None:
    links = {f"b{up}": {"$ref": f"$.b{up - 1}"} for up in range(100, 0, -1)}
    value = loads(json.dumps({**links, "b0": {"x": 1}}).encode())
    assert value == {f"b{up}": {"x": 1} for up in range(101)}


def test_a_reference_that_leads_through_itself_is_refused() -> None:
    with pytest.raises(BodyError, match="leads through itself: send the value"):
        loads(b'{"a":{"$ref":"$.b.x"},"b":{"$ref":"$.a.x"}}')


def test_the_steps_of_all_references_together_are_bounded() -> None:
    rounds = ".x" * (MAX_REFERENCE_STEPS // 2)
    circle = {"x": {"$ref": "$.circle"}}
    text = json.dumps({"a": {"$ref": f"$.b{rounds}"}, "b": {"$ref": f"$.circle{rounds}"}, "circle": circle})
    with pytest.raises(BodyError, match="steps in their paths: send values instead"):
        loads(text.encode())


def test_a_path_to_nowhere_is_not_repeated_whole_in_the_error() -> None:
    with pytest.raises(BodyError, match="nowhere") as refused:
        loads(b'{"a":{"$ref":"$.' + b"n" * 100_000 + b'"}}')
    assert len(str(refused.value)) < 500


_MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"' + b'\\"' * (2 * _MEGABYTE),
        b'{"a":"' + b'\\"' * (2 * _MEGABYTE) + b"\\",
        b"{'a':'" + b"\\'" * (2 * _MEGABYTE),
        b"{'a':" + b'"\\' * (2 * _MEGABYTE),
        b"{" + b" " * (4 * _MEGABYTE) + b"?",
        b"{" + b"1" * (4 * _MEGABYTE) + b" " * _MEGABYTE + b"?",
        b"{a:1." + b"1" * (2 * _MEGABYTE) + b"e" + b"1" * (2 * _MEGABYTE) + b"x",
        b'{"a":{"$ref":"$.' + b"\\\\n" * _MEGABYTE + b'"}}',
        b'{"a":{"$ref":"$' + b"['" * (2 * _MEGABYTE) + b'"}}',
        b'{"a":{"$ref":"$' + b"[1" * (2 * _MEGABYTE) + b'"}}',
    ],
    ids=[
        "escaped quotes, never closed",
        "a lone backslash at the end",
        "single quotes, never closed",
        "strings that swallow the next quote",
        "spaces",
        "an integer that is no key",
        "a number that is none",
        "a name of escapes",
        "quoted steps, never closed",
        "numbered steps, never closed",
    ],
)
def test_four_megabytes_of_what_regular_expressions_stumble_over_are_refused(text: bytes) -> None:
    """Of the first, a search that began anew at each quote needed days."""
    with pytest.raises(BodyError):
        loads(text)


def test_bare_integer_keys_are_found_beside_strings_full_of_quotes() -> None:
    text = rb'{"a\\\"{1:2":{ 1 :"x\\",-2:"{3:4}"},5:[]}'
    assert loads(text) == {'a\\"{1:2': {"1": "x\\", "-2": "{3:4}"}, "5": []}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{a:", b"{{", b"[,", b'[{"$ref":"$"},'])
def test_hostile_depth_is_a_body_error(opening: bytes) -> None:
    with pytest.raises(BodyError):
        loads(opening * 100_000)
    with pytest.raises(BodyError):
        loads(opening * 100_000 + b"1")


def test_the_depth_the_tolerant_reader_follows_is_bounded() -> None:
    assert loads(b"[" * MAX_DEPTH + b"1,]" + b"]" * (MAX_DEPTH - 1))
    with pytest.raises(BodyError, match="deeper"):
        loads(b"[" * (MAX_DEPTH + 1) + b"1,]" + b"]" * MAX_DEPTH)


def test_writing_a_value_that_contains_itself_is_a_body_error() -> None:
    loop: dict[Any, Any] = {}
    loop[1] = loop
    with pytest.raises(BodyError):
        dumps(loop, bare_int_keys=True)


def test_an_endless_number_costs_no_endless_time() -> None:
    for text in (b"[" + b"9" * 50_000 + b"]", b"{a:" + b"9" * 50_000 + b"}"):
        with pytest.raises(BodyError):
            loads(text)


def test_text_that_is_not_utf8_is_a_body_error() -> None:
    with pytest.raises(BodyError, match="UTF-8"):
        loads(b'{a:"\xff"}')


def test_keys_whose_numbers_have_one_hash_do_not_meet() -> None:
    same = (1 << 61) - 1  # the modulus of Python's hash of integers
    keys = [ObjectKey({"queueId": number * same, "more": (number * same,)}) for number in range(1, 200)]
    assert len({hash(key) for key in keys}) > 190
    assert len(set(map(hash, (ObjectKey({"a": value}) for value in (1, 1.0, True))))) == 1


# ---- how much is read slowly


def test_what_strict_json_cannot_read_has_an_end() -> None:
    """A megabyte of this took most of a second, in which nobody else was served."""
    text = b"{" + b"a:1," * (MAX_TOKENS // 4) + b"}"
    with pytest.raises(BodyError, match="more than 250,000 tokens"):
        loads(text)
    assert loads(text, max_tokens=MAX_TOKENS_ASKED_FOR) == {"a": 1}
    assert loads(b"{" + b"a:1," * 1000 + b"}") == {"a": 1}


def test_what_strict_json_can_read_may_be_as_large_as_a_frame() -> None:
    numbers = list(range(MAX_TOKENS))
    assert loads(json.dumps(numbers).encode()) == numbers


def test_bare_integer_keys_are_as_many_as_any_table_of_a_stranger_has() -> None:
    def table(count: int) -> bytes:
        return b"{" + b",".join(b"%d:%d" % (number, number) for number in range(count)) + b"}"

    assert len(loads(table(MAX_TOKENS - 10))) == MAX_TOKENS - 10
    with pytest.raises(BodyError, match="more than 250,000 integer keys"):
        loads(table(MAX_TOKENS))
    assert len(loads(table(MAX_TOKENS), max_tokens=MAX_TOKENS_ASKED_FOR)) == MAX_TOKENS


def test_a_registration_of_ten_thousand_topics_is_read_as_apaches_brokers_write_it() -> None:
    """With the bare keys of a static topic's queues."""
    topic = (
        '"T%d":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T%d","topicSysFlag":0,"writeQueueNums":8}'
    )
    topics = ",".join(topic % (number, number) for number in range(10_000))
    mapping = '"T0":{"bname":"b","currIdMap":{0:0,1:1,2:2},"dirty":false,"epoch":1,"scope":"__global__","topic":"T0","totalQueues":3}'
    body = (
        '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},'
        f'"topicConfigTable":{{{topics}}},"topicQueueMappingInfoMap":{{{mapping}}}}}}}'
    )
    listing = Listing.from_json(body.encode()).topic_config_serialize_wrapper
    assert len(listing.topic_config_table) == 10_000
    assert listing.topic_queue_mapping_info_map["T0"].curr_id_map == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("key", [-1, 65_536, 2**31 - 1])
def test_queues_of_a_static_topic_have_small_numbers(key: int) -> None:
    """Where large ones fall in a dict can be chosen so that each has to pass all others."""
    wrapper = f'{{"topicQueueMappingInfoMap":{{"T":{{"currIdMap":{{"{key}":0}}}}}}}}'
    with pytest.raises(BodyError):
        Listing.from_json(f'{{"topicConfigSerializeWrapper":{wrapper}}}'.encode())


def test_what_a_tool_asked_a_broker_for_may_be_large_and_what_a_client_tells_a_broker_may_not() -> None:
    queue = '{"brokerName":"broker-a","queueId":%d,"topic":"T"}:%s'
    lag = '{"brokerOffset":9,"consumerOffset":7,"lastTimestamp":1}'
    lags = ",".join(queue % (number, lag) for number in range(12_000))
    assert len(ConsumeStats.from_json(f'{{"consumeTps":0.5,"offsetTable":{{{lags}}}}}'.encode()).offsets) == 12_000

    def status(count: int) -> bytes:
        return f'{{"messageQueueTable":{{{",".join(queue % (number, 5) for number in range(count))}}}}}'.encode()

    assert len(ConsumerStatusBody.from_json(status(5_000)).own) == 5_000
    with pytest.raises(BodyError, match="tokens"):
        ConsumerStatusBody.from_json(status(20_000))
