"""What settings may be changed to from afar: nothing that keeps the broker from starting again, or from storing messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
import pytest

from orbitmq.access.settings import ACCESS_SETTINGS
from orbitmq.broker.broker import Broker
from orbitmq.broker.settings import NEVER_CHANGEABLE, Settings, load
from orbitmq.broker.settings_bounds import CHOICES, RANGES, TEXTS
from orbitmq.configuration import texts
from orbitmq.errors import ConfigError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import configuration, running, wire

if TYPE_CHECKING:
    from pathlib import Path

FIELDS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Settings)}
KINDS: Final[dict[str, Any]] = get_type_hints(Settings, include_extras=True)
CHANGEABLE: Final = {name: key for name, key in FIELDS.items() if key not in NEVER_CHANGEABLE | ACCESS_SETTINGS}
# At these ends a setting says that nothing is to be stored, or not yet, or not on a busy machine; or it takes 200 MB of disk.
LEFT_OUT: Final = {
    "disk_space_warning_level_ratio": "least",
    "start_accept_send_request_time_stamp": "most",
    "broker_permission": "least",
    "wait_time_mills_in_send_queue": "least",
    "os_page_cache_busy_time_out_mills": "least",
    "server_channel_max_idle_time_seconds": "least",
    "max_hash_slot_num": "most",
}


def _bounds() -> dict[str, tuple[int, int]]:
    """Of every number that can be changed, wherever it is declared."""
    found = {name: (least, most) for name, least, most in RANGES}
    for name in FIELDS:
        if get_origin(KINDS[name]) is Annotated:
            meta = next(part for part in get_args(KINDS[name]) if isinstance(part, msgspec.Meta))
            assert isinstance(meta.ge, int), name
            assert isinstance(meta.le, int), name
            found[name] = (meta.ge, meta.le)
    return found


def test_every_setting_has_bounds_or_cannot_be_changed() -> None:
    """A new one fails here until somebody has thought about the worst that it can be set to."""
    bounded = _bounds()
    for name, key in CHANGEABLE.items():
        kind = KINDS[name]
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        assert kind in (bool, int, str), f"{key}: a new kind of setting"
        if kind is int:
            assert name in bounded, f"{key}: say in settings_bounds.py from where to where it may go"
        if kind is str:
            assert name in CHOICES.keys() | TEXTS.keys() | {"message_delay_level"}, f"{key}: say what form it has"
    assert {name for name, _, _ in RANGES} | CHOICES.keys() | TEXTS.keys() <= FIELDS.keys()


def _bad_values() -> dict[str, list[str]]:
    bounded = _bounds()
    numbers = {
        CHANGEABLE[name]: [
            str(least - 1),
            str(most + 1),
            str(-(2**63)),
            str(2**63),
            "9" * 30,
            "9" * 5000,
            "1.5",
            "x",
            "",
        ]
        for name, (least, most) in bounded.items()
        if name in CHANGEABLE
    }
    choices = {CHANGEABLE[name]: ["", "no such choice"] for name in CHOICES if name in CHANGEABLE}
    return {
        **numbers,
        **choices,
        "messageDelayLevel": ["", "0", "9" * 30 + "d", "9" * 5000 + "s", "3651d", "1s " * 1001, "1s -5s"],
        "deleteWhen": ["25", "04;99", "-1", "9" * 5000],
        "namesrvAddr": ["nowhere", "a:b", "a:70000", "a:" + "9" * 5000],
        "brokerIP1": ["broker.local", "1.2.3.4.5", "x" * 5000],
        "brokerIP2": ["a b", "x" * 5000],
        "regionId": ["x" * 5000],
        "msgTraceTopicName": ["../x", "", "x" * 128],
    }


def test_no_setting_takes_a_value_that_it_cannot_have(tmp_path: Path) -> None:
    bad = _bad_values()
    assert len(bad) > 90
    given = configuration(tmp_path)
    for key, values in bad.items():
        for value in values:
            with pytest.raises(ConfigError) as refused:
                given.changed({key: value})
            assert key in str(refused.value), value[:50]
            assert len(str(refused.value)) < 1000, key


async def test_who_changes_a_setting_to_what_it_cannot_be_is_told_so(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        before = broker.configuration.as_properties()
        for change in ("messageDelayLevel=" + "9" * 30 + "d", "popPollingSize=-1", "msgTraceTopicName=../x"):
            answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, change.encode())
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert change.partition("=")[0] in (answer.remark or "")
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"haListenPort=99999999")).code == 16
        assert broker.configuration.as_properties() == before


@pytest.mark.parametrize("end", ["least", "most"])
async def test_with_every_setting_at_its_end_the_broker_starts_again_and_stores(tmp_path: Path, end: str) -> None:
    """All of them at once, changed from afar as anybody would."""
    ends = {
        name: str(least if end == "least" else most)
        for name, (least, most) in _bounds().items()
        if name in CHANGEABLE and LEFT_OUT.get(name) != end
    }
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await client.send("T", b"before")).code == 0
        changes = "\n".join(f"{CHANGEABLE[name]}={value}" for name, value in ends.items())
        answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, changes.encode())
        assert (answer.code, answer.remark) == (0, None)
        saved = broker.configuration.file
    wanted = [b"before"]
    for body in (b"after a start", b"after another"):
        async with Broker(load(saved)) as broker, wire(broker) as client:
            assert texts(broker.configuration.settings).items() >= {FIELDS[name]: ends[name] for name in ends}.items()
            assert (await client.send("T", body)).code == 0
            wanted.append(body)
            assert await client.bodies("T") == wanted


# Apache's broker starts with all of them.
OUT_OF_BOUNDS: Final = {
    "maxTransferBytesOnMessageInMemory": ("67108864", "15728640"),
    "maxIndexNum": ("60000000", "50000000"),
    "osPageCacheBusyTimeOutMills": ("-1", "0"),
    "deleteWhen": ("04;99", "04;24"),
}


def _file(tmp_path: Path, **lines: str) -> Path:
    file = tmp_path / "broker.conf"
    settings = texts(configuration(tmp_path / "store").settings) | lines
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


async def test_what_is_out_of_bounds_in_a_file_is_brought_into_them_and_said_once(tmp_path: Path) -> None:
    file = _file(tmp_path, **{key: given for key, (given, _) in OUT_OF_BOUNDS.items()})
    loaded = load(file)
    for key, (value, used) in OUT_OF_BOUNDS.items():
        assert texts(loaded.settings)[key] == used
        (sentence,) = (sentence for sentence in loaded.adjusted if key in sentence)
        assert f"{key}={value} " in sentence
        assert f": {used} is used" in sentence
    assert len(loaded.adjusted) == len(OUT_OF_BOUNDS)
    async with Broker(loaded) as broker, wire(broker) as client:
        answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxIndexNum=60000000")
        assert answer.code == ResponseCode.INVALID_PARAMETER, "whoever is there to read the answer is told"
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=50")).code == 0
    assert load(file).adjusted == ()


@pytest.mark.parametrize("value", ["-1", "9" * 18])
@pytest.mark.parametrize("key", ["listenPort", "brokerId", "mappedFileSizeCommitLog", "orbitmq.topicsCreatedPerMinute"])
def test_who_a_broker_is_and_how_its_store_was_written_is_not_guessed(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value} is out of range"):
        load(_file(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("1", 100),
        ("199", 100),
        ("250", 200),
        ("500", 500),
        ("999", 500),
        ("60000", 1000),
        ("-5", 100),
        ("2147483647", 1000),
    ],
)
def test_a_wheel_is_opened_with_the_precision_that_apaches_broker_made_of_the_file(
    tmp_path: Path, given: str, used: int
) -> None:
    """It knows four. With another the slots of its wheel would stand for other moments."""
    loaded = load(_file(tmp_path, timerPrecisionMs=given))
    assert loaded.settings.timer_precision_ms == used
    said = [sentence for sentence in loaded.adjusted if f"timerPrecisionMs={given} " in sentence]
    assert len(said) == (given != str(used))
    with pytest.raises(ConfigError, match="timerPrecisionMs=250 cannot be"):
        load(None, {"timerPrecisionMs": "250", "storePathRootDir": str(tmp_path)})


def test_what_is_set_on_the_command_line_is_refused_out_of_bounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="maxIndexNum=60000000 is out of range"):
        load(_file(tmp_path, maxIndexNum="70000000"), {"maxIndexNum": "60000000"})


@pytest.mark.parametrize(
    ("text", "hours"), [("24", ()), ("04;24", (4,)), ("2;14", (2, 14)), ("25", ()), ("", (4,)), ("soon", (4,))]
)
def test_nothing_is_deleted_at_an_hour_that_never_comes(tmp_path: Path, text: str, hours: tuple[int, ...]) -> None:
    """Java compares the number with the hour of the day."""
    assert load(_file(tmp_path, deleteWhen=text)).settings.storage_config().delete_at_hours == hours


async def test_the_longest_delay_is_kept_and_indexed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"messageDelayLevel=1s 3650d")
        assert answer.code == 0
        assert (await client.send("T", b"in ten years", DELAY="2")).code == 0
        saved = broker.configuration.file
    async with Broker(load(saved)) as broker, wire(broker) as client:
        assert (await client.send("T", b"now")).code == 0
        assert broker.state.store.queue_range("SCHEDULE_TOPIC_XXXX", 1).max_offset == 1
        assert await client.bodies("T") == [b"now"]
