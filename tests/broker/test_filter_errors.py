"""What is wrong in a SQL92 filter is told with the character that it begins at, to whoever brings the filter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.sql_filter import SqlFilter
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import CHECK_CLIENT, running, wire
from tests.broker.lease_kit import LeaseClient

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.protocol.command import Command

# The filter, and below it the character that is complained of.
WRONG = """
a > 'x' AND b = 1
  ^
b = 1 AND a > 'x'
            ^
a = 1 OR b = NULL
           ^
b = 1 AND a BETWEEN 5 AND 1 AND b > 1
            ^
5 IN ('a') OR b = 1
  ^
5
^
a = 1 AND 5 AND b = 1
          ^
5 OR a = 1
^
(a = 1) AND NOT 5
                ^
a > 99999999999999999999 AND b = 1
    ^
a = 0.0 AND b = 1
    ^
5 = a AND (b = 1 OR c > TRUE)
                      ^
TRUE = 5 OR a = 1
     ^
a = 1 # b
      ^
a >
   ^
a IN ('x' 'y')
          ^
a != 1
  ^
(a > 1
      ^
"""
LINES = WRONG.strip("\n").split("\n")
CASES = [(text, mark.index("^") + 1) for text, mark in zip(LINES[::2], LINES[1::2], strict=True)]


@pytest.mark.parametrize(("text", "character"), CASES)
def test_a_filter_that_is_none_is_complained_of_where_it_goes_wrong(text: str, character: int) -> None:
    with pytest.raises(RequestFailed) as refused:
        SqlFilter(text)

    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert str(refused.value).endswith(f"at character {character}")


async def test_every_way_to_bring_a_filter_tells_what_is_wrong_in_it(tmp_path: Path) -> None:
    text, place = "a = 1 AND b > 'x'", "at character 13"
    async with running(tmp_path, enablePropertyFilter="true") as broker, wire(broker) as client:
        await client.send("T", b"x")
        leaser = LeaseClient(client)
        wanted = {"topic": "T", "subString": text, "subVersion": 1, "expressionType": "SQL92"}
        check = {"clientId": "c", "group": "G", "subscriptionData": wanted}
        answers: dict[str, Command] = {
            "a push consumer's start": await client.ask(CHECK_CLIENT, None, json.dumps(check).encode()),
            "a pull": await client.pull("T", subscription=text, expression_type="SQL92"),
            "a pop": await leaser.ask_pop("T", exp=text, expType="SQL92"),
        }
        for what, answer in answers.items():
            assert (answer.code, place in str(answer.remark)) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True), (
                what,
                answer,
            )
        consumer = {"groupName": "G", "messageModel": "CLUSTERING", "subscriptionDataSet": [wanted]}
        beat = json.dumps({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}).encode()
        assert (await client.ask(RequestCode.HEART_BEAT, None, beat)).code == 0
        told = await client.pull("T", sys_flag=0)
        assert (told.code, place in str(told.remark)) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True), told
