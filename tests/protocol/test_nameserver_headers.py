"""The name server's headers as typed structs: what Apache's programs sent goes through them without loss."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import HeaderError
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.protocol.headers import nameserver as headers
from tests.golden_frames import GoldenFrame, golden_frames

if TYPE_CHECKING:
    from orbitmq.protocol.headers.base import Header

REQUESTS: dict[int, type[Header]] = {
    RequestCode.PUT_KV_CONFIG: headers.PutKvConfig,
    RequestCode.GET_KV_CONFIG: headers.KvConfigKey,
    RequestCode.DELETE_KV_CONFIG: headers.KvConfigKey,
    RequestCode.GET_KVLIST_BY_NAMESPACE: headers.KvNamespace,
    RequestCode.REGISTER_BROKER: headers.RegisterBroker,
    RequestCode.UNREGISTER_BROKER: headers.UnregisterBroker,
    RequestCode.QUERY_DATA_VERSION: headers.QueryDataVersion,
    RequestCode.BROKER_HEARTBEAT: headers.BrokerHeartbeat,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: headers.GetRoute,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: headers.BrokerName,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: headers.BrokerName,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: headers.DeleteTopic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: headers.RegisterTopic,
    RequestCode.GET_TOPICS_BY_CLUSTER: headers.ClusterName,
    RequestCode.GET_BROKER_MEMBER_GROUP: headers.MemberGroup,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: headers.MinBrokerIdChanged,
}
ANSWERS: dict[int, type[Header]] = {
    RequestCode.GET_KV_CONFIG: headers.KvConfigValue,
    RequestCode.REGISTER_BROKER: headers.BrokerRegistered,
    RequestCode.QUERY_DATA_VERSION: headers.DataVersionVerdict,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: headers.WritePermissionWiped,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: headers.WritePermissionAdded,
}
# What any request may carry besides its own header, or what a controller reads: not the name server's business.
FOREIGN = {"AccessKey", "Signature", "SecurityToken", "ReqT", "bname", "ns", "nsd", "oway", "lo"} | {
    "epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority", "brokerId",
}  # fmt: skip


def kind_of(golden: GoldenFrame) -> type[Header] | None:
    if golden.is_response:
        return ANSWERS.get(golden.to_code or 0) if golden.code == 0 else None
    return REQUESTS.get(golden.code)


RECORDED = [golden for golden in golden_frames() if kind_of(golden) is not None]


def test_the_recordings_hold_every_header_of_the_name_server() -> None:
    seen = {(golden.is_response, golden.to_code if golden.is_response else golden.code) for golden in RECORDED}
    assert seen == {(False, int(code)) for code in REQUESTS} | {(True, int(code)) for code in ANSWERS}


@pytest.mark.parametrize("golden", RECORDED, ids=str)
def test_a_recorded_header_goes_through_its_struct_without_loss(golden: GoldenFrame) -> None:
    kind = kind_of(golden)
    assert kind is not None
    command = commands.decode(FrameDecoder().feed(golden.data)[0])
    own_foreign = FOREIGN - set(kind.__struct_encode_fields__)
    sent = {key: value for key, value in command.fields.items() if key not in own_foreign}
    # What is absent on the wire has its default in the struct, and may be written out.
    defaults = {field.encode_name for field in msgspec.structs.fields(kind) if not field.required}
    written = command.read(kind).to_fields()
    assert {key: written[key] for key in sent} == sent
    assert written.keys() - sent.keys() <= defaults


@pytest.mark.parametrize("golden", RECORDED, ids=str)
def test_the_quick_and_the_tolerant_way_read_the_same(golden: GoldenFrame) -> None:
    kind = kind_of(golden)
    assert kind is not None
    fields = commands.decode(FrameDecoder().feed(golden.data)[0]).fields
    assert kind.from_json(msgspec.json.encode(fields)) == kind.from_fields(fields)


EVERY_KIND = sorted({*REQUESTS.values(), *ANSWERS.values()}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(data=st.data())
def test_any_header_survives_both_codecs(kind: type[Header], data: st.DataObject) -> None:
    # Not empty: the binary codec cannot tell an empty text from none.
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    longs = st.integers(-(1 << 31), (1 << 31) - 1)
    values = {"bool": st.booleans(), "int": longs, "str": texts}
    chosen = {}
    for field in msgspec.structs.fields(kind):
        name = "bool" if "bool" in str(field.type) else "int" if "int" in str(field.type) else "str"
        chosen[field.name] = data.draw(values[name] if field.required else st.none() | values[name])
    header = kind(**{name: value for name, value in chosen.items() if value is not None})
    for codec in (0, 1):
        sent = commands.encode(Command(1, fields=header.to_fields()), codec)
        assert commands.decode(FrameDecoder().feed(sent)[0]).read(kind) == header


def test_a_text_that_is_a_member_of_an_enum_is_written_as_what_it_says() -> None:
    class Name(str, Enum):  # noqa: UP042 - a StrEnum is formatted as its value anyway
        TOPIC = "T"

    assert headers.GetRoute(topic=Name.TOPIC).to_fields()["topic"] == "T"


def test_an_empty_text_is_absent_in_the_binary_codec_and_a_text_in_json() -> None:
    fields = {"topic": "T", "clusterName": ""}
    read = [
        commands.decode(FrameDecoder().feed(commands.encode(Command(216, fields=fields), codec))[0]).read(
            headers.DeleteTopic
        )
        for codec in (0, 1)
    ]
    assert [header.cluster_name for header in read] == ["", None]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_missing_field_is_named(kind: type[Header]) -> None:
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    for missing in required:
        fields = {field.encode_name: "1" for field in required if field is not missing}
        with pytest.raises(HeaderError, match=missing.encode_name):
            kind.from_fields(fields)
        with pytest.raises(HeaderError, match=missing.encode_name):
            kind.from_json(msgspec.json.encode(fields))


REGISTRATION = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "haServerAddr": "a:2", "brokerId": "0"}


@pytest.mark.parametrize(
    ("field", "text"),
    [("brokerId", "zero"), ("brokerId", "1.5"), ("brokerId", ""), ("brokerId", "9223372036854775808"),
     ("heartbeatTimeoutMillis", "soon"), ("bodyCrc32", "2147483648"), ("bodyCrc32", "0x10")],
)  # fmt: skip
def test_an_ill_typed_field_is_named(field: str, text: str) -> None:
    fields = {**REGISTRATION, field: text}
    with pytest.raises(HeaderError, match=field):
        headers.RegisterBroker.from_fields(fields)
    with pytest.raises(HeaderError, match=field):
        headers.RegisterBroker.from_json(msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("text", "meaning"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)]
)
def test_booleans_are_true_only_as_true(text: str, meaning: bool) -> None:
    fields = {**REGISTRATION, "compressed": text}
    assert headers.RegisterBroker.from_fields(fields).compressed is meaning
    assert headers.RegisterBroker.from_json(msgspec.json.encode(fields)).compressed is meaning


def test_numbers_booleans_and_nulls_are_read_where_texts_should_stand() -> None:
    raw = (
        b'{"brokerName":"b","brokerAddr":"a:1","clusterName":5,"haServerAddr":"h","brokerId":3,"compressed":true,'
        b'"heartbeatTimeoutMillis":null,"bodyCrc32":"","unknown":{"x":[1]}}'
    )
    assert headers.RegisterBroker.from_json(raw) == headers.RegisterBroker(
        broker_name="b", broker_addr="a:1", cluster_name="5", ha_server_addr="h", broker_id=3, compressed=True
    )
