"""What is done to users, and whatever is refused behind the gate as well as at it, leaves one line that says from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.message.ids import offset_message_id
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.access.test_around_the_gate import MINE, THEIRS, Guarded, guarded_broker
from tests.access.test_matrix import MEMBER, ROOT
from tests.broker.kit import send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

BEAT: Final = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'


@pytest.fixture
async def guarded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Guarded]:
    caplog.set_level("INFO", "orbitmq.audit")
    async with guarded_broker(tmp_path) as guarded:
        yield guarded


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "orbitmq.audit"]


async def test_who_tries_to_become_a_super_user_or_to_delete_one_leaves_a_line(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    change = PolicyEntry(resource="Cluster:*", actions=["Update"], decision="Allow")
    guarded.broker.state.users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[change])]))
    for code, username, body in (
        (RequestCode.AUTH_UPDATE_USER, "member", b'{"userType":"Super"}'),
        (RequestCode.AUTH_DELETE_USER, "root", b""),
    ):
        caplog.clear()
        answer = await guarded.ask(MEMBER, code, {"username": username}, body)
        assert answer.code == ResponseCode.NO_PERMISSION
        (line,) = lines(caplog)
        assert line.startswith(f"refused {code.name} from 127.0.0.1: ")


async def test_what_is_done_to_users_and_policies_leaves_a_line_with_who_and_from_where(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    eve, of_eve = {"username": "eve"}, {"subject": "User:eve"}
    policy = b'{"policies":[{"entries":[{"resource":"Topic:T","actions":["Pub"],"decision":"Allow"}]}]}'
    done: list[tuple[int, dict[str, str], bytes, str]] = [
        (RequestCode.AUTH_CREATE_USER, eve, b'{"password":"12345678"}', "created user eve"),
        (RequestCode.AUTH_UPDATE_USER, eve, b'{"password":"87654321"}', "changed user eve"),
        (RequestCode.AUTH_CREATE_ACL, of_eve, policy, "set policies of User:eve"),
        (RequestCode.AUTH_DELETE_ACL, of_eve, b"", "deleted policies of User:eve for everything"),
        (RequestCode.AUTH_DELETE_USER, eve, b"", "deleted user eve"),
    ]
    for code, fields, body, what in done:
        caplog.clear()
        assert (await guarded.ask(ROOT, code, fields, body)).code == 0, what
        (line,) = lines(caplog)
        assert line.startswith("root at 127.0.0.1:")
        assert line.endswith(f": {what}")


async def test_what_a_handler_refuses_leaves_one_line(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """What it is about is known only there; some refusals are told as if there were nothing."""
    theirs = await guarded.send(THEIRS, b"theirs")
    await guarded.send(MINE, b"mine")
    half = send_header(THEIRS, 0, {"TRAN_MSG": "true", "PGROUP": "P"}, {"sys_flag": 4})
    begun = await guarded.ask(ROOT, RequestCode.SEND_MESSAGE_V2, half, b"half")
    assert (await guarded.ask(MEMBER, RequestCode.HEART_BEAT, {}, BEAT)).code == 0
    given_up = guarded.broker.state.store.append(
        "TRANS_CHECK_MAX_TIME_TOPIC", 0, b"x", encode_properties({"REAL_TOPIC": THEIRS, "PGROUP": "P"}), 0, bytes(8)
    )
    may_update = PolicyEntry(resource=f"Topic:{MINE}", actions=["Pub", "Sub", "Update"], decision="Allow")
    guarded.broker.state.users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[may_update])]))
    end = {
        "producerGroup": "P", "tranStateTableOffset": begun.fields["queueOffset"], "commitOrRollback": 8, "msgId": "m",
        "commitLogOffset": int(begun.fields["msgId"][16:], 16),
    }  # fmt: skip
    directly = {"consumerGroup": "G", "clientId": "c", "msgId": offset_message_id(bytes(8), theirs)}
    given_up_id = offset_message_id(bytes(8), given_up.commit_log_offset)
    tries: dict[RequestCode, dict[str, Any]] = {
        RequestCode.END_TRANSACTION: end,
        RequestCode.VIEW_MESSAGE_BY_ID: {"offset": theirs},
        RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": theirs, "group": "G", "delayLevel": -1, "originTopic": MINE},
        RequestCode.CONSUME_MESSAGE_DIRECTLY: directly,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: {"msgId": given_up_id},
    }
    for code, fields in tries.items():
        caplog.clear()
        refused = await guarded.ask(MEMBER, code, {**fields, "topic": MINE})
        assert refused.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR), code.name
        (line,) = lines(caplog)
        assert code.name in line
        assert "127.0.0.1" in line


async def test_what_is_not_there_is_no_refusal(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    missing = await guarded.ask(MEMBER, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1 << 40, "topic": MINE})
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert lines(caplog) == []
