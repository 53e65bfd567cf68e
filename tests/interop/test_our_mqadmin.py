"""`orbitmq mqadmin` and `orbitmq doctor` on Apache's own cluster: what the original prints, line by line and column by column.

Both tools ask the same Apache 5.3.3 name server and broker. Left out of the comparison is what cannot be the same twice (rates, times
of the moment) and the order in which Java's hash maps happen to give lines.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

import orbitmq as mq
from orbitmq.admin.groups import GroupDetail
from orbitmq.admin.offsets import QueueLag, TopicLag
from orbitmq.admin.traces import MessageTrace
from orbitmq.cli.mqadmin.verbs import INSTEAD, VERBS
from tests.cli.kit import Command, wait_until
from tests.cli.mqadmin_schemas import check_verb
from tests.cli.test_acl import ACCESS_VERBS
from tests.interop import apache
from tests.interop.apache import BrokerPlan
from tests.interop.drivers import JavaClient, MqAdmin
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.test_access_control import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

pytestmark = INTEROP

CLUSTER: Final = "cluster-a"


@dataclass(frozen=True, slots=True)
class Cluster:
    original: MqAdmin
    ours: Command
    client: JavaClient
    words: Mapping[str, str]

    def both(self, *command: str) -> tuple[str, str]:
        """What the original prints, and what ours does."""
        arguments = [word.format(**self.words) if "{" in word and ":" not in word else word for word in command]
        theirs = self.original.run(*arguments, "-n", self.ours.name_server)
        assert theirs.exit_status in (None, 0), theirs
        mine = self.ours.ok("mqadmin", *arguments)
        check_verb(command[0], self.ours.ok("mqadmin", *arguments, "--output", "json").json)
        return theirs.out, mine.out


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("mqadmin")
    java = build("5.3.3")
    with ExitStack() as stack:
        name_server = apache.start_name_server(java, folder / "namesrv")
        stack.callback(name_server.process.kill)
        plan = BrokerPlan(
            name="broker-a",
            cluster=CLUSTER,
            name_servers=[name_server.address],
            settings={**PROVIDERS, **apache.SELDOM_SAVED, "traceTopicEnable": "true", "enablePropertyFilter": "true"},
        )
        broker = apache.start_broker(java, folder / "broker", plan)
        stack.callback(broker.process.kill)
        original = MqAdmin(java, folder / "admin")
        stack.callback(original.close)
        client = JavaClient(java, folder / "client")
        stack.callback(client.close)
        ours = Command(name_server.address)
        ours.ok("topic", "create", "Orders", "-q", "4")
        ours.ok("topic", "create", "Permitted")
        ours.ok("group", "create", "Readers")
        client.call("OpenProducer", name="p", nameServer=name_server.address, group="Writers", options={})
        for key in "abcd":
            messages = [{"text": f"{key}{i}", "tag": "T", "keys": f"{key}{i}"} for i in range(3)]
            receipts = client.send("p", "Orders", messages, order_key=key)
        client.open_push_consumer(
            "c", name_server.address, "Orders", group="Readers", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET"
        )
        assert len(client.received("c", 12)) == 12
        wait_until(
            lambda: [row.lag for row in ours.ok("group", "lag", "Readers", "-o", "json").rows(TopicLag)] == [0, 0]
        )
        (folder / "topics").write_text('[{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]')
        (folder / "groups").write_text('[{"groupName": "ListedGroup", "retryMaxTimes": 5}]')
        files = {name: str(folder / name) for name in ("topics", "groups")}
        words = {**files, "broker": broker.address, "offset_id": receipts[-1]["offsetId"], "id": receipts[-1]["id"]}
        yield Cluster(original, ours, client, words)


def normal(text: str) -> list[str]:
    """Lines without what differs from one moment to the next."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"\{([^{}]*)\}", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    text = re.sub(r"Message Body Path: .*", "Message Body Path:", text)
    text = re.sub(r"lastUpdateTimestamp=\d+", "", text)
    text = re.sub(r"Topic Put TPS: .*", "Topic Put TPS:", text)  # the original forgets to add them up
    text = re.sub(r"MessageTrack \[consumerGroup=Orders(.|\n)*?\]\s*", "", text)  # a topic taken for a group
    text = re.sub(
        r"(?m)^((?:put|get)\w*Tps|runtime|\w*Ratio\S*|\w*Capacity|\w*[Tt]ime\w*|dispatch\w*|remain\w*|\w*Offset_\d+)(\s*):.*$",
        r"\1\2:",
        text,
    )
    return [line.rstrip() for line in text.splitlines() if line.strip()]


SAME: Final[Sequence[tuple[str, ...]]] = (
    ("topicList",),
    ("topicRoute", "-t", "Orders", "-l"),
    ("topicStatus", "-t", "Orders"),
    ("consumerProgress", "-g", "Readers", "-t", "Orders"),
    ("consumerProgress",),
    ("consumerConnection", "-g", "Readers"),
    ("producerConnection", "-g", "Writers", "-t", "Orders"),
    ("queryMsgByKey", "-t", "Orders", "-k", "a1"),
    ("queryMsgById", "-t", "Orders", "-i", "{offset_id}"),
    ("queryMsgById", "-t", "Orders", "-i", "{offset_id}", "-f", "UTF-8"),
    ("queryMsgByUniqueKey", "-t", "Orders", "-i", "{id}"),
    ("queryMsgByOffset", "-t", "Orders", "-b", "broker-a", "-i", "0", "-o", "1"),
    ("printMsg", "-t", "Orders"),
    ("printMsg", "-t", "Orders", "-d", "false"),
    ("consumeMessage", "-t", "Orders", "-b", "broker-a", "-i", "2", "-o", "0", "-c", "2"),
    ("getBrokerConfig", "-b", "{broker}"),
    ("getNamesrvConfig",),
    ("updateTopic", "-c", CLUSTER, "-t", "Made", "-r", "2", "-w", "3", "-a", "+message.type=FIFO"),
    ("updateTopic", "-b", "{broker}", "-t", "Made", "-o", "true"),
    ("deleteTopic", "-c", CLUSTER, "-t", "Made"),
    ("updateSubGroup", "-b", "{broker}", "-g", "MadeGroup", "-s", "false", "-q", "2"),
    ("deleteSubGroup", "-b", "{broker}", "-g", "MadeGroup", "-r", "true"),
    ("updateBrokerConfig", "-b", "{broker}", "-k", "fileReservedTime", "-v", "50"),
    ("updateKvConfig", "-s", "space", "-k", "key", "-v", "value"),
    ("deleteKvConfig", "-s", "space", "-k", "key"),
    ("updateNamesrvConfig", "-k", "scanNotActiveBrokerInterval", "-v", "5000"),
    ("wipeWritePerm", "-b", "broker-a"),
    ("addWritePerm", "-b", "broker-a"),
    ("cloneGroupOffset", "-s", "Readers", "-d", "Readers", "-t", "Orders"),
    ("brokerStatus", "-b", "{broker}"),
    ("topicClusterList", "-t", "Orders"),
    ("updateOrderConf", "-t", "Permitted", "-m", "put", "-v", "broker-a:4"),
    ("updateOrderConf", "-t", "Permitted", "-m", "get"),
    ("updateOrderConf", "-t", "Permitted", "-m", "delete"),
    ("printMsgByQueue", "-t", "Orders", "-a", "broker-a", "-i", "1", "-p", "true", "-d", "true", "-f", "true"),
    ("brokerConsumeStats", "-b", "{broker}"),
    ("getConsumerConfig", "-g", "Readers"),
    ("producer", "-b", "{broker}"),
    ("haStatus", "-b", "{broker}"),
    ("queryCq", "-t", "Orders", "-q", "1", "-i", "0", "-c", "2", "-b", "{broker}"),
    ("cleanExpiredCQ", "-b", "{broker}"),
    ("updateTopicList", "-b", "{broker}", "-f", "{topics}"),
    ("updateSubGroupList", "-b", "{broker}", "-f", "{groups}"),
    ("setConsumeMode", "-b", "{broker}", "-t", "Orders", "-g", "Readers", "-m", "PULL"),
    ("resetMasterFlushOffset", "-b", "{broker}", "-o", "0"),
    ("updateColdDataFlowCtrGroupConfig", "-b", "{broker}", "-g", "Readers", "-v", "9000"),
    ("removeColdDataFlowCtrGroupConfig", "-b", "{broker}", "-g", "Readers"),
    ("setCommitLogReadAheadMode", "-b", "{broker}", "-m", "0"),
    ("cleanUnusedTopic", "-c", CLUSTER),
    ("deleteExpiredCommitLog", "-b", "{broker}"),
    ("clusterList", "-m"),
)


@pytest.mark.parametrize("command", SAME, ids=" ".join)
def test_prints_what_the_original_prints(cluster: Cluster, command: tuple[str, ...]) -> None:
    theirs, mine = cluster.both(*command)
    assert sorted(normal(mine)) == sorted(normal(theirs))
    assert normal(mine)


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_columns_with_figures_of_the_moment_are_in_the_same_places(cluster: Cluster) -> None:
    theirs, mine = cluster.both("clusterList")
    assert mine.splitlines()[0] == theirs.splitlines()[0]
    assert [len(row) for row in columns(mine)] == [len(row) for row in columns(theirs)]
    theirs, mine = cluster.both("statsAll")
    assert mine.splitlines()[0] == theirs.splitlines()[0]
    assert {row[0] for row in columns(mine)} == {row[0] for row in columns(theirs)}
    theirs, mine = cluster.both("sendMessage", "-t", "Orders", "-p", "hello", "-b", "broker-a", "-i", "1")
    assert mine.splitlines()[0] == theirs.splitlines()[0]
    assert columns(mine)[1][:3] == columns(theirs)[1][:3] == ["broker-a", "1", "SEND_OK"]
    theirs, mine = cluster.both("checkMsgSendRT", "-t", "Orders", "-a", "3", "-s", "10")
    assert mine.splitlines()[0] == theirs.splitlines()[0]
    assert [row[:3] for row in columns(mine)[1:-1]] == [row[:3] for row in columns(theirs)[1:-1]]
    theirs, mine = cluster.both("consumerStatus", "-g", "Readers")
    assert [row[:3] for row in columns(mine)] == [row[:3] for row in columns(theirs)]


def test_topic_route_and_json_are_json(cluster: Cluster) -> None:
    theirs, mine = cluster.both("topicRoute", "-t", "Orders")
    theirs = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', theirs)
    route = json.loads(mine)
    assert route["queueDatas"] == json.loads(theirs)["queueDatas"]
    assert cluster.ours.ok("mqadmin", "topicRoute", "-t", "Orders", "-o", "json").json == route


def test_queues_are_shared_out(cluster: Cluster) -> None:
    """The original takes the queues in the order of a hash map; consumers, and ours, sort them first."""
    theirs, mine = cluster.both("allocateMQ", "-t", "Orders", "-i", "10.0.0.1,10.0.0.2")
    shares = json.loads(mine)["result"]
    assert shares.keys() == json.loads(theirs)["result"].keys()
    assert [[queue["queueId"] for queue in share] for share in shares.values()] == [[0, 1], [2, 3]]


def test_a_group_is_moved_as_the_original_moves_it(cluster: Cluster) -> None:
    theirs, mine = cluster.both("resetOffsetByTime", "-g", "Readers", "-t", "Orders", "-s", "-1")
    assert sorted(normal(mine)) == sorted(normal(theirs))
    theirs, mine = cluster.both("resetOffsetByTime", "-g", "Readers", "-t", "Orders", "-s", "0")
    assert sorted(normal(mine)) == sorted(normal(theirs))
    theirs, mine = cluster.both("skipAccumulatedMessage", "-g", "Readers", "-t", "Orders")
    assert sorted(normal(mine)) == sorted(normal(theirs))


@pytest.mark.parametrize("where", [("-c", CLUSTER), ("-b", "{broker}")], ids=" ".join)
def test_a_permission_is_changed_as_the_original_changes_it(cluster: Cluster, where: tuple[str, str]) -> None:
    place = where[1].format(**cluster.words)
    command = ("updateTopicPerm", "-t", "Permitted", where[0], place, "-p")
    theirs = cluster.original.run(*command, "4", "-n", cluster.ours.name_server).out
    back = cluster.ours.ok("mqadmin", *command, "6").out
    assert normal(cluster.ours.ok("mqadmin", *command, "4").out) == normal(theirs)
    assert normal(cluster.original.run(*command, "6", "-n", cluster.ours.name_server).out) == normal(back)


def test_users_and_policies_are_managed_as_the_original_manages_them(cluster: Cluster) -> None:
    """Each tool makes a user of its own; what both list is one list."""
    broker = cluster.words["broker"]

    def each(*command: str) -> None:
        theirs = cluster.original.run(*[word.format(who="anna") for word in command], "-n", cluster.ours.name_server)
        mine = cluster.ours.ok("mqadmin", *[word.format(who="emma") for word in command]).out
        assert normal(mine) == normal(theirs.out.replace("anna", "emma")), theirs

    policy = ("-s", "User:{who}", "-r", "Topic:Orders,Group:Readers", "-a", "Pub,Sub", "-i", "127.0.0.1", "-d")
    each("createUser", "-b", broker, "-u", "{who}", "-p", "a-secret", "-t", "Normal")
    each("updateUser", "-c", CLUSTER, "-u", "{who}", "-s", "disable")
    each("getUser", "-b", broker, "-u", "{who}")
    each("createAcl", "-c", CLUSTER, *policy, "Allow")
    each("updateAcl", "-b", broker, *policy, "Deny")
    each("getAcl", "-c", CLUSTER, "-s", "User:{who}")
    each("copyUser", "-f", broker, "-t", broker, "-u", "{who}")
    each("copyAcl", "-f", broker, "-t", broker, "-s", "User:{who}")
    for verb in ("listUser", "listAcl"):
        for where in (("-b", broker), ("-c", CLUSTER)):
            theirs, mine = cluster.both(verb, *where)
            assert sorted(normal(mine)) == sorted(normal(theirs))
            assert "anna" in mine
    each("deleteAcl", "-b", broker, "-s", "User:{who}")
    each("deleteUser", "-c", CLUSTER, "-u", "{who}")


def test_a_trace_is_told_as_the_original_tells_it(cluster: Cluster) -> None:
    async def send() -> str:
        async with (
            mq.connect(cluster.ours.name_server) as client,
            mq.Tracer(client) as tracer,
            client.producer(group="Telling", hooks=[tracer]) as producer,
        ):
            receipt = await producer.send("Orders", b"told", keys=["told"])
            return receipt.message_id

    message_id = asyncio.run(send())
    wait_until(lambda: "Telling" in cluster.ours.ok("mqadmin", "queryMsgTraceById", "-i", message_id).out)
    theirs, mine = cluster.both("queryMsgTraceById", "-i", message_id)
    assert normal(mine) == normal(theirs)


def test_what_a_broker_does_about_cold_data_is_shown_as_the_original_shows_it(cluster: Cluster) -> None:
    theirs, mine = cluster.both("getColdDataFlowCtrInfo", "-b", cluster.words["broker"])
    assert normal(mine)[0] == normal(theirs)[0]
    shown, wanted = (json.loads(text[text.index("{") :]) for text in (mine, theirs))
    assert shown == wanted


def test_every_verb_is_compared() -> None:
    alone = {
        "clusterList", "statsAll", "sendMessage", "checkMsgSendRT", "consumerStatus", "topicRoute", "allocateMQ",
        "resetOffsetByTime", "skipAccumulatedMessage", "updateTopicPerm", "queryMsgTraceById", "getColdDataFlowCtrInfo",
    }  # fmt: skip
    assert {command[0] for command in SAME} | alone | ACCESS_VERBS == VERBS.keys()


def test_no_verb_is_forgotten(cluster: Cluster) -> None:
    verbs = set(re.findall(r"^   (\w+) ", cluster.original.run().out, re.MULTILINE))
    assert len(verbs) > 80
    assert verbs == VERBS.keys() | INSTEAD.keys()
    outcome = cluster.ours.failure("mqadmin", "clusterRT")
    assert outcome.code == 2
    assert "orbitmq bench" in outcome.err


def test_our_own_commands_work_on_apaches_cluster(cluster: Cluster) -> None:
    detail = cluster.ours.ok("group", "describe", "Readers", "-o", "json").document(GroupDetail)
    assert detail.online
    assert [member.language for member in detail.members] == ["JAVA"]
    trace = cluster.ours.ok("msg", "trace", cluster.words["id"], "--topic", "Orders", "-o", "json").document(
        MessageTrace
    )
    assert [group.group for group in trace.groups] == ["Readers"]
    seen = cluster.ours.ok("doctor", "--topic", "Orders", "--group", "Readers")
    assert "is a name server" in seen.out
    assert "release V5_3_3" in seen.out
    assert "agrees with ours" in seen.out
    assert "they subscribe to the same" in seen.out


def test_an_offline_group_of_apaches_is_reset(cluster: Cluster) -> None:
    cluster.ours.ok("group", "create", "Sleepers")
    for goal, want in ((("--to-latest",), None), (("--to-offset", "1"), 1), (("--to-earliest",), 0)):
        cluster.ours.ok("group", "reset", "Sleepers", "--topic", "Orders", *goal, "--yes")
        rows = cluster.ours.ok("group", "lag", "Sleepers", "--queues", "-o", "json").rows(QueueLag)
        assert all(row.committed == (row.max_offset if want is None else want) for row in rows)
