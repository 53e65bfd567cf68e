"""`orbitmq mqadmin` on our own server: every verb runs, in both forms, and those that are not here say what to use.

That the lines are the original's is seen in tests/interop/test_our_mqadmin.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.cli.mqadmin.report import key_of
from orbitmq.cli.mqadmin.verbs import INSTEAD, VERBS
from orbitmq.sync import connect
from tests.cli.kit import wait_until
from tests.cli.mqadmin_schemas import VERB_SCHEMAS, check_verb
from tests.cli.test_acl import ACCESS_VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.testing import Server
    from tests.cli.kit import Command

STORY: tuple[tuple[tuple[str, ...], str], ...] = (
    (("updateTopic", "-c", "DefaultCluster", "-t", "Made", "-r", "2", "-w", "2", "-o", "true"), "perm=RW-"),
    (("topicList",), "Made"),
    (("topicList", "-c"), "DefaultCluster"),
    (("topicRoute", "-t", "Made"), '"writeQueueNums": 2'),
    (("topicRoute", "-t", "Made", "-l"), "#BrokerAddrs"),
    (("sendMessage", "-t", "Made", "-p", "hi", "-k", "k1", "-c", "T", "-b", "test", "-i", "1"), "SEND_OK"),
    (("topicStatus", "-t", "Made"), "Topic Put TPS"),
    (("queryMsgByKey", "-t", "Made", "-k", "k1"), "#Message ID"),
    (("queryMsgByOffset", "-t", "Made", "-b", "test", "-i", "1", "-o", "0", "-f", "UTF-8"), "Message Body:        hi"),
    (("printMsg", "-t", "Made"), "BODY: hi"),
    (("consumeMessage", "-t", "Made", "-b", "test", "-i", "1"), "Consume ok"),
    (("checkMsgSendRT", "-t", "Made", "-a", "2"), "Avg RT"),
    (("allocateMQ", "-t", "Made", "-i", "a,b"), '"a":'),
    (("updateSubGroup", "-c", "DefaultCluster", "-g", "MadeGroup", "-r", "3"), "retryMaxTimes=3"),
    (("resetOffsetByTime", "-g", "MadeGroup", "-t", "Made", "-s", "-1"), "#queueId"),
    (
        ("resetOffsetByTime", "-g", "MadeGroup", "-t", "Made", "-s", "now", "-b", "{broker}", "-q", "0", "-o", "0"),
        "to 0",
    ),
    (("consumerProgress", "-g", "MadeGroup"), "Consume Diff Total"),
    (("consumerProgress",), "#Diff Total"),
    (("consumerProgress", "-g", "Online", "-s", "true"), "#Client IP"),
    (("consumerConnection", "-g", "Online"), "MessageModel: CLUSTERING"),
    (("consumerStatus", "-g", "Online"), "Same subscription"),
    (("consumerStatus", "-g", "Online", "-i", "{client}"), "#Consumer Subscription#"),
    (("producerConnection", "-g", "Producers", "-t", "Made"), "PYTHON"),
    (("updateSubGroup", "-b", "{broker}", "-g", "Copy"), "success"),
    (("cloneGroupOffset", "-s", "MadeGroup", "-d", "Copy", "-t", "Made"), "clone group offset success"),
    (("clusterList",), "V5_3_3"),
    (("clusterList", "-m"), "#InTotalToday"),
    (("brokerStatus", "-b", "{broker}"), "brokerVersionDesc"),
    (("brokerStatus", "-c", "DefaultCluster"), "{broker}"),
    (("getBrokerConfig", "-b", "{broker}"), "fileReservedTime"),
    (("getBrokerConfig", "-c", "DefaultCluster"), "Master: {broker}"),
    (("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "70"), "success"),
    (("statsAll", "-t", "Made"), "Made"),
    (("updateKvConfig", "-s", "ns", "-k", "k", "-v", "v"), "success"),
    (("deleteKvConfig", "-s", "ns", "-k", "k"), "success"),
    (("getNamesrvConfig",), "listenPort"),
    (("updateNamesrvConfig", "-k", "scanNotActiveBrokerInterval", "-v", "5000"), "success"),
    (("wipeWritePerm", "-b", "test"), "OK, "),
    (("addWritePerm", "-b", "test"), "OK, "),
    (("updateTopicPerm", "-t", "Made", "-p", "4", "-c", "DefaultCluster"), "to 4 in"),
    (("topicClusterList", "-t", "Made"), "DefaultCluster"),
    (("updateOrderConf", "-t", "Made", "-m", "put", "-v", "test:2"), "update orderConf success"),
    (("updateOrderConf", "-t", "Made", "-m", "get"), "orderConf=[test:2]"),
    (("updateOrderConf", "-t", "Made", "-m", "delete"), "delete orderConf success"),
    (("skipAccumulatedMessage", "-g", "MadeGroup", "-t", "Made"), "#offset"),
    (("printMsgByQueue", "-t", "Made", "-a", "test", "-i", "1", "-p", "true", "-d", "true", "-f", "true"), "Tag: T "),
    (("brokerConsumeStats", "-b", "{broker}"), "Diff Total"),
    (("getConsumerConfig", "-g", "MadeGroup"), "retryMaxTimes"),
    (("producer", "-b", "{broker}"), "producer group (Producers) instance"),
    (("haStatus", "-b", "{broker}"), "#SlaveNum\t0"),
    (("queryCq", "-t", "Made", "-q", "1", "-i", "0", "-c", "1", "-b", "{broker}"), "physicOffset="),
    (("cleanExpiredCQ", "-b", "{broker}"), "success"),
    (("cleanUnusedTopic", "-c", "DefaultCluster"), "success"),
    (("deleteExpiredCommitLog",), "success"),
    (("queryMsgTraceById", "-i", "nothing"), ""),
    (("updateTopicList", "-b", "{broker}", "-f", "{topics}"), "submit batch of topic config to"),
    (("updateSubGroupList", "-c", "DefaultCluster", "-f", "{groups}"), "submit batch of group config to"),
    (("topicList",), "Listed"),
    (("getConsumerConfig", "-g", "ListedGroup"), "retryMaxTimes                           =  5"),
    (("setConsumeMode", "-b", "{broker}", "-t", "Made", "-g", "MadeGroup", "-m", "PULL"), "consume mode[PULL]"),
    (("resetMasterFlushOffset", "-b", "{broker}", "-o", "0"), "reset master flush offset to 0 success"),
    (("updateColdDataFlowCtrGroupConfig", "-b", "{broker}", "-g", "MadeGroup", "-v", "9000"), "success"),
    (("getColdDataFlowCtrInfo", "-b", "{broker}"), '"MadeGroup": 9000'),
    (("removeColdDataFlowCtrGroupConfig", "-c", "DefaultCluster", "-g", "MadeGroup"), "success"),
    (("setCommitLogReadAheadMode", "-b", "{broker}", "-m", "0"), "success"),
    (("deleteSubGroup", "-c", "DefaultCluster", "-g", "MadeGroup", "-r", "true"), "%RETRY%MadeGroup"),
    (("deleteTopic", "-c", "DefaultCluster", "-t", "Made"), "success"),
)


@pytest.fixture(scope="module")
def client_id(orbitmq: Command) -> Iterator[str]:
    """Of a consumer that is running, beside a producer."""
    orbitmq.ok("topic", "create", "Busy", "-q", "1")
    with connect(orbitmq.name_server) as client:
        client.producer(group="Producers").send("Busy", b"x")
        seen: list[object] = []
        with client.consumer("Busy", group="Online", start="earliest", handler=lambda message: seen.append(message)):
            wait_until(lambda: seen != [])
            yield orbitmq.ok("group", "connections", "Online", "-o", "json").json[0]["client_id"]


def test_every_verb_does_its_work_in_both_forms(
    orbitmq: Command, server: Server, client_id: str, tmp_path: Path
) -> None:
    (tmp_path / "topics").write_text('[{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]')
    (tmp_path / "groups").write_text('[{"groupName": "ListedGroup", "retryMaxTimes": 5}]')
    files = {f"{{{name}}}": str(tmp_path / name) for name in ("topics", "groups")}
    words = {"{broker}": server.broker_address, "{client}": client_id, **files}
    for command, want in STORY:
        arguments = [words.get(word, word) for word in command]
        wanted = want.replace("{broker}", server.broker_address)
        assert wanted in orbitmq.ok("mqadmin", *arguments).out, command
        value = orbitmq.ok("mqadmin", *arguments, "--output", "json").json
        assert value != {}, command
        check_verb(command[0], value)
    nothing = orbitmq.ok("mqadmin", "printMsg", "-t", "Busy", "-s", "NoSuchTag", "--output", "json").json
    assert nothing == {"messages": []}
    one = orbitmq.ok("msg", "send", "Busy", "one", "--key", "one", "-o", "json").json[0]
    for verb, message_id in (
        ("queryMsgById", one["offset_id"]),
        ("queryMsgById", one["id"]),
        ("queryMsgByUniqueKey", one["id"]),
    ):
        value = orbitmq.ok("mqadmin", verb, "-t", "Busy", "-i", message_id, "-o", "json").json
        assert [(message["body"], message["keys"]) for message in value["messages"]] == [("one", ["one"])]
        check_verb(verb, value)
    done = {command[0] for command, _ in STORY} | {"queryMsgById", "queryMsgByUniqueKey"}
    assert done | ACCESS_VERBS == VERBS.keys()


def test_what_every_verb_prints_as_json_is_documented() -> None:
    assert json.loads(VERB_SCHEMAS.read_text())["verbs"].keys() == VERBS.keys()


def test_a_terminal_obeys_no_message(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Painted", "-q", "1")
    with connect(orbitmq.name_server) as client:
        client.producer(group="Painters").send(
            "Painted", "\x1b]0;mine\x07a\x9b2Jb\N{RIGHT-TO-LEFT OVERRIDE}c\td".encode(), keys=["\x1b[2J"]
        )
    printed = orbitmq.ok("mqadmin", "printMsg", "-t", "Painted").out
    assert "BODY: .]0;mine.a.2Jb.c\td" in printed
    assert "KEYS=.[2J" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("verb", ["electMaster", "exportMetadata", "updateStaticTopic", "clusterRT"])
def test_a_verb_that_is_not_here_says_what_to_use(orbitmq: Command, verb: str) -> None:
    outcome = orbitmq.failure("mqadmin", verb, "-b", "whatever")
    assert outcome.code == 2
    assert INSTEAD[verb] in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("updateTopic", "-t", "T"), "give -b or -c"),
        (("updateTopic", "-t", "T", "-c", "C", "-r", "many"), "-r 'many' is no number"),
        (("topicStatus",), "'-t'"),
        (("printMsg", "-t", "T", "-b", "once"), "'once' is no time"),
        (("noSuchVerb",), "No such command 'noSuchVerb'"),
    ],
)
def test_wrong_use_is_one_line(orbitmq: Command, arguments: tuple[str, ...], words: str) -> None:
    outcome = orbitmq("mqadmin", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_titles_become_names_of_fields() -> None:
    assert [key_of(title) for title in ("#Broker Name", "#QID", "#InTPS(LOAD)", "#Diff Total")] == [
        "brokerName",
        "qid",
        "inTPSLoad",
        "diffTotal",
    ]
