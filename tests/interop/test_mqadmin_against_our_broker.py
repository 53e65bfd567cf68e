"""mqadmin of 5.3.3 prints the same about our broker as about Apache's own.

Two small clusters of the same names, each with a name server of its own, are brought into the same state; every command then runs
against both, in one JVM. Taken out before comparing is only what must differ (`_normal` says what: addresses, times, message ids,
rates) and the one known mistake of Apache's that shows (`_without_topic_as_group`).

Commands are listed as stories, each a sequence with something its answer must hold. The last tests see to it that no verb of mqadmin
and no request code is forgotten, and show where we differ by intent. docs/compatibility.md says why.
"""

import difflib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from tests.interop import wire
from tests.interop.drivers import AdminAnswer, MqAdmin
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.twins import CLUSTER, Side, running_twins

pytestmark = INTEROP

RELEASE: Final = "5.3.3"
AGREE_SECONDS: Final = 25.0  # figures of ten seconds must have been taken on both sides

# RocksDB's (354, 355), of controllers (1007, 1008). docs/compatibility.md has them.
NOT_SERVED: Final = {354, 355, 1007, 1008}

Command = tuple[str, ...]
Story = Sequence[tuple[Command, str]]

# What a command prints must hold the text beside it, on both sides. {broker}, {folder} and {offset_id} are each side's own.
STORIES: Final[Mapping[str, Story]] = {
    "cluster": [
        (("clusterList",), "V5_3_3"),
        (("clusterList", "-m"), "broker-a"),
        (("brokerStatus", "-b", "{broker}"), "msgPutTotalTodayNow"),
        (("brokerStatus", "-c", CLUSTER), "msgPutTotalTodayNow"),
        (("haStatus", "-b", "{broker}"), "#SlaveNum\t0"),
        (("resetMasterFlushOffset", "-b", "{broker}", "-o", "0"), "success"),
    ],
    "topics": [
        (("topicList",), "Orders"),
        (("topicList", "-c"), "Readers"),
        (("topicRoute", "-t", "Orders"), '"writeQueueNums":4'),
        (("topicRoute", "-t", "Orders", "-l"), "broker-a"),
        (("topicClusterList", "-t", "Orders"), CLUSTER),
        (("topicStatus", "-t", "Orders"), "broker-a"),
        (("topicStatus", "-t", "Orders", "-c", CLUSTER), "broker-a"),
        (("topicStatus", "-t", "Nope"), "CODE: 17"),
        (("allocateMQ", "-t", "Orders", "-i", "10.0.0.1,10.0.0.2"), "queueId"),
        (("statsAll",), "Orders"),
        (("statsAll", "-t", "Orders"), "Readers"),
    ],
    "topics made, changed and deleted": [
        (("updateTopic", "-b", "{broker}", "-t", "Made", "-r", "2", "-w", "3", "-a", "+message.type=FIFO"), "success"),
        (("exportMetadata", "-b", "{broker}", "-t", "-f", "{folder}"), "success"),
        (("updateTopic", "-b", "{broker}", "-t", "Made", "-a", "-message.type"), "success"),
        (("updateTopic", "-c", CLUSTER, "-t", "Made", "-o", "true"), "success"),
        (("updateTopic", "-b", "{broker}", "-t", "TBW102"), "CODE: 29"),
        (("updateTopicPerm", "-t", "Made", "-p", "4", "-b", "{broker}"), "perm=R--"),
        (("updateTopicPerm", "-t", "Made", "-p", "6", "-c", CLUSTER), "from 4 to 6"),
        (("updateTopicList", "-b", "{broker}", "-f", "{folder}/topics.json"), "success"),
        (("topicRoute", "-t", "Made"), '"writeQueueNums":8'),
        (("deleteTopic", "-c", CLUSTER, "-t", "Made"), "success"),
        (("deleteTopic", "-c", CLUSTER, "-t", "Listed"), "success"),
        (("deleteTopic", "-c", CLUSTER, "-t", "Nope"), "success"),
        (("deleteTopic", "-c", CLUSTER, "-t", "TBW102"), "CODE: 29"),
        (("topicStatus", "-t", "Made"), "CODE: 17"),
    ],
    "groups made, changed and deleted": [
        (("updateSubGroup", "-b", "{broker}", "-g", "Made", "-s", "false", "-q", "2", "-r", "3"), "success"),
        (("getConsumerConfig", "-g", "Made"), "retryMaxTimes"),
        (("updateSubGroup", "-c", CLUSTER, "-g", "Made", "-s", "true", "-d", "true"), "success"),
        (("getConsumerConfig", "-g", "Made"), "consumeEnable"),
        (("updateSubGroupList", "-b", "{broker}", "-f", "{folder}/groups.json"), "success"),
        (("exportMetadata", "-b", "{broker}", "-g", "-f", "{folder}"), "success"),
        (("deleteSubGroup", "-b", "{broker}", "-g", "Made", "-r", "true"), "success"),
        (("deleteSubGroup", "-c", CLUSTER, "-g", "Listed"), "success"),
        (("deleteSubGroup", "-b", "{broker}", "-g", "Nope"), "success"),
        (("getConsumerConfig", "-g", "Nope"), ""),
    ],
    "who leases": [
        (("setConsumeMode", "-b", "{broker}", "-t", "Orders", "-g", "Leasers", "-m", "POP", "-q", "2"), "success"),
        (("setConsumeMode", "-c", CLUSTER, "-t", "Orders", "-g", "Leasers", "-m", "PULL"), "success"),
        (("exportPopRecord", "-b", "{broker}"), "Export broker records,"),
        (("deleteSubGroup", "-b", "{broker}", "-g", "Leasers", "-r", "true"), "success"),
    ],
    "clients": [
        (("consumerConnection", "-g", "Readers"), "JAVA"),
        (("consumerConnection", "-g", "Nobody"), "CODE: 17"),
        (("producerConnection", "-g", "Writers", "-t", "Orders"), "JAVA"),
        (("producerConnection", "-g", "Nobody", "-t", "Orders"), "the producer group[Nobody] not exist"),
        (("producer", "-b", "{broker}"), "Writers"),
        (("consumerStatus", "-g", "Readers"), "Same subscription in the same group of consumer"),
        (("consumerStatus", "-g", "Readers", "-i", "{consumer}"), "#Consumer Properties#"),
        (("consumerStatus", "-g", "Readers", "-i", "nobody"), "not online"),
    ],
    "how far groups are": [
        (("consumerProgress",), "Readers"),
        (("consumerProgress", "-g", "Readers"), "Consume Diff Total: 0"),
        (("consumerProgress", "-g", "Readers", "-t", "Orders"), "Consume Diff Total: 0"),
        (("consumerProgress", "-g", "Nobody"), "CODE"),
        (("brokerConsumeStats", "-b", "{broker}"), "Diff Total: 0"),
        (("brokerConsumeStats", "-b", "{broker}", "-o", "true"), "Diff Total: 0"),
        (("cloneGroupOffset", "-s", "Readers", "-d", "Readers", "-t", "Orders"), "clone group offset success"),
    ],
    "messages": [
        (("queryMsgByKey", "-t", "Orders", "-k", "a1"), "ID    1 "),
        (("queryMsgByKey", "-t", "Orders", "-k", "nope"), "CODE: 208"),
        (("queryMsgByOffset", "-t", "Orders", "-b", "broker-a", "-i", "0", "-o", "1"), "[d1]"),
        (("queryMsgByOffset", "-t", "Orders", "-b", "broker-a", "-i", "0", "-o", "77"), ""),
        (("queryMsgById", "-t", "Orders", "-i", "{offset_id}"), "[d2]"),
        (("queryMsgById", "-t", "Orders", "-i", "{offset_id}", "-g", "Readers", "-d", "{consumer}"), "CR_SUCCESS"),
        (("queryMsgByUniqueKey", "-t", "Orders", "-i", "{unique_key}"), "[d2]"),
        (("queryMsgByUniqueKey", "-t", "Orders", "-i", "nope"), ""),
        (("queryMsgTraceById", "-i", "nope"), ""),
        (("queryCq", "-t", "Orders", "-q", "1", "-i", "0", "-c", "2", "-b", "{broker}"), "physicOffset=247"),
        (("queryCq", "-t", "Orders", "-q", "1", "-i", "1", "-c", "2", "-b", "{broker}", "-g", "Readers"), "subString"),
        (("queryCq", "-t", "Orders", "-q", "9", "-i", "0", "-c", "2", "-b", "{broker}"), "9@Orders is not exist!"),
        (("printMsg", "-t", "Orders"), "storeSize=247"),
        (("printMsgByQueue", "-t", "Orders", "-a", "broker-a", "-i", "1", "-p", "true"), "queueId=1"),
        (("consumeMessage", "-t", "Orders", "-b", "broker-a", "-i", "2", "-o", "0", "-c", "2"), "Consume ok"),
    ],
    "settings": [
        (("getBrokerConfig", "-b", "{broker}"), "fileReservedTime=72"),
        (("updateBrokerConfig", "-b", "{broker}", "-k", "fileReservedTime", "-v", "50"), "success"),
        (("getBrokerConfig", "-c", CLUSTER), "fileReservedTime=50"),
        (("updateBrokerConfig", "-b", "{broker}", "-k", "noSuchSetting", "-v", "50"), "success"),
        (("updateBrokerConfig", "-b", "{broker}", "-k", "brokerConfigPath", "-v", "x"), "CODE: 16"),
        (("updateBrokerConfig", "-c", CLUSTER, "-k", "fileReservedTime", "-v", "72"), "success"),
        (("getColdDataFlowCtrInfo", "-b", "{broker}"), '"configTable":{}'),
        (("updateColdDataFlowCtrGroupConfig", "-b", "{broker}", "-g", "Readers", "-v", "100000"), "success"),
        (("getColdDataFlowCtrInfo", "-c", CLUSTER), ""),
        (("removeColdDataFlowCtrGroupConfig", "-b", "{broker}", "-g", "Readers"), "success"),
        (("setCommitLogReadAheadMode", "-b", "{broker}", "-m", "1"), "success"),
        (("setCommitLogReadAheadMode", "-b", "{broker}", "-m", "0"), "success"),
    ],
    "exports": [
        (("exportConfigs", "-c", CLUSTER, "-f", "{folder}"), "success"),
        (("exportMetadata", "-c", CLUSTER, "-f", "{folder}"), "success"),
        (("exportMetrics", "-c", CLUSTER, "-f", "{folder}"), "success"),
    ],
    "cleaning up": [
        (("cleanExpiredCQ", "-b", "{broker}"), "success"),
        (("cleanExpiredCQ", "-c", CLUSTER), "success"),
        (("cleanUnusedTopic", "-b", "{broker}"), "success"),
        (("cleanUnusedTopic", "-c", CLUSTER), "success"),
        (("deleteExpiredCommitLog", "-b", "{broker}"), "success"),
        (("deleteExpiredCommitLog", "-c", CLUSTER), "success"),
    ],
    "sending and going elsewhere": [
        (("updateTopic", "-c", CLUSTER, "-t", "Elsewhere", "-r", "2", "-w", "2"), "success"),
        (
            ("sendMessage", "-t", "Elsewhere", "-p", "hello", "-k", "k", "-c", "tag", "-b", "broker-a", "-i", "1"),
            "SEND_OK",
        ),
        (("sendMsgStatus", "-b", "broker-a", "-s", "10", "-c", "2"), "SEND_OK"),
        (("checkMsgSendRT", "-t", "Elsewhere", "-a", "2", "-s", "10"), "true"),
        (("resetOffsetByTime", "-g", "Readers", "-t", "Elsewhere", "-s", "0"), "broker-a"),
        (("resetOffsetByTime", "-g", "Readers", "-t", "Elsewhere", "-s", "-1"), "broker-a"),
        (("resetOffsetByTime", "-g", "Nobody", "-t", "Elsewhere", "-s", "now"), "CODE: 26"),
        (("skipAccumulatedMessage", "-g", "Readers", "-t", "Elsewhere"), "broker-a"),
        (("topicStatus", "-t", "Elsewhere"), "broker-a"),
    ],
}

# A few of 4.9.7's own, against the same two brokers.
OF_4_9: Final[Sequence[Command]] = (
    ("clusterList", "-m"),
    ("topicStatus", "-t", "Orders"),
    ("consumerProgress", "-g", "Readers"),
    ("consumerConnection", "-g", "Readers"),
    ("queryMsgById", "-i", "{offset_id}"),
    ("updateTopic", "-b", "{broker}", "-t", "Older", "-r", "2", "-w", "2"),
    ("deleteTopic", "-c", CLUSTER, "-t", "Older"),
    ("updateSubGroup", "-b", "{broker}", "-g", "Older"),
    ("deleteSubGroup", "-b", "{broker}", "-g", "Older", "-r", "true"),
)

# Verbs that no stand-alone broker has anything to do with, or that cannot be compared, and why.
NOT_COMPARED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "updateKvConfig", "deleteKvConfig", "updateOrderConf", "updateNamesrvConfig", "getNamesrvConfig",
            "wipeWritePerm", "addWritePerm",
        ),
        "asks the name server only: test_mqadmin_against_our_nameserver.py",
    ),
    **dict.fromkeys(
        (
            "getControllerMetaData", "getControllerConfig", "updateControllerConfig", "electMaster", "getSyncStateSet",
            "cleanBrokerMetadata", "getBrokerEpoch",
        ),
        "needs a controller",
    ),
    **dict.fromkeys(("addBroker", "removeBroker"), "needs a broker container"),
    **dict.fromkeys(("clusterRT", "startMonitoring"), "runs until it is killed"),
    **dict.fromkeys(("dumpCompactionLog", "exportMetadataInRocksDB"), "reads files, asks nobody"),
}  # fmt: skip

# Verbs that we answer otherwise than Apache does: its text, and ours.
DIFFERENT: Final[Mapping[Command, tuple[str, str]]] = {
    ("updateStaticTopic", "-t", "Static", "-qn", "4", "-c", CLUSTER): (
        "new mapping data",
        "CODE: 3  DESC: static topics",
    ),
    ("remappingStaticTopic", "-t", "Static", "-c", CLUSTER): ("mapping data", "No topic route"),
    ("rocksDBConfigToJson", "-c", CLUSTER, "-t", "topics"): ("", "CODE: 3"),
    ("checkRocksdbCqWriteProgress", "-c", CLUSTER): ("check doing", "CODE: 3"),
    ("createUser", "-b", "{broker}", "-u", "u", "-p", "p"): ("CODE: 1 ", "CODE: 1 "),
    ("updateUser", "-b", "{broker}", "-u", "u", "-p", "p"): ("CODE: 1 ", "CODE: 1 "),
    ("deleteUser", "-b", "{broker}", "-u", "u"): ("CODE: 1 ", "CODE: 1 "),
    ("getUser", "-b", "{broker}", "-u", "u"): ("CODE: 1 ", "CODE: 1 "),
    ("listUser", "-b", "{broker}"): ("CODE: 1 ", "CODE: 1 "),
    ("copyUser", "-f", "{broker}", "-t", "{broker}", "-u", "u"): ("CODE: 1 ", "CODE: 1 "),
    ("createAcl", "-b", "{broker}", "-s", "User:u", "-r", "Topic:*", "-a", "PUB", "-d", "Allow"): (
        "CODE: 1 ",
        "CODE: 1 ",
    ),
    ("updateAcl", "-b", "{broker}", "-s", "User:u", "-r", "Topic:*", "-a", "PUB", "-d", "Allow"): (
        "CODE: 1 ",
        "CODE: 1 ",
    ),
    ("deleteAcl", "-b", "{broker}", "-s", "User:u"): ("CODE: 1 ", "CODE: 1 "),
    ("getAcl", "-b", "{broker}", "-s", "User:u"): ("CODE: 1 ", "CODE: 1 "),
    ("listAcl", "-b", "{broker}"): ("CODE: 1 ", "CODE: 1 "),
    ("copyAcl", "-f", "{broker}", "-t", "{broker}", "-s", "User:u"): ("CODE: 1 ", "CODE: 1 "),
    ("updateSubGroup", "-b", "{broker}", "-g", "not a name"): ("success", "CODE: 29"),
    ("updateTopic", "-b", "{broker}", "-t", "not a name"): ("CODE: 29", "CODE: 29"),
    ("updateTopic", "-b", "{broker}", "-t", "Orders", "-a", "+message.type=NONE"): ("CODE: 1 ", "CODE: 1 "),
    ("updateBrokerConfig", "-b", "{broker}", "-k", "fileReservedTime", "-v", "long"): ("success", "CODE: 29"),
    ("updateBrokerConfig", "-b", "{broker}", "-k", "storePathRootDir", "-v", "/tmp"): ("success", "CODE: 16"),
}

# There is no buffer of acknowledgements to be scanned here, and no library to be named.
NOT_EXPORTED: Final = r"^rocketmq_pop_buffer_scan_time_consume_|^(target|otel_scope)_info$"

# What each broker measures or is by itself; the keys must be there on both sides.
OWN_FIGURES: Final = (
    "bootTimestamp", "runtime", "earliestMessageTimeStamp", "commitLogDirCapacity", "commitLogDiskRatio",
    "consumeQueueDiskRatio", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps", "putTps",
    "getMessageEntireTimeMax", "putMessageEntireTimeMax", "putMessageDistributeTime", "putLatency99", "putLatency999",
    "remainHowManyDataToFlush", "dispatchBehindBytes", "pageCacheLockTimeMills",
)  # fmt: skip
OWN_SETTINGS: Final = (
    "brokerIP1", "brokerIP2", "listenPort", "haListenPort", "bindAddress", "namesrvAddr", "storePathRootDir",
    "storePathCommitLog", "rocketmqHome", "brokerConfigPath", "diskMaxUsedSpaceRatio", "osPageCacheBusyTimeOutMills",
    "waitTimeMillsInSendQueue", "metricsPromExporterPort",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Both:
    admin: MqAdmin
    apache: Side
    ours: Side

    def run(self, side: Side, command: Command) -> AdminAnswer:
        words = [word.format(**side.words()) if "{" in word else word for word in command]
        return self.admin.run(*words, "-n", side.name_server)

    def compare(self, command: Command) -> AdminAnswer:
        """Our answer, once both agree: some figures take their time."""
        deadline = time.monotonic() + AGREE_SECONDS
        while True:
            apaches, ours = (_normal(side, command, self.run(side, command)) for side in (self.apache, self.ours))
            if apaches == ours or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        difference = difflib.ndiff(str(apaches).splitlines(), str(ours).splitlines())
        changed = "\n".join(line for line in difference if line[0] in "-+")
        assert apaches == ours, f"{' '.join(command)}: - is Apache's, + is ours\n{changed}"
        return ours


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("twins")
    admin = MqAdmin(build(RELEASE), folder / "mqadmin")
    try:
        with running_twins(folder, build(RELEASE), admin) as (theirs, ours):
            yield Both(admin, theirs, ours)
    finally:
        admin.close()


@pytest.fixture(scope="module")
def older_admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    admin = MqAdmin(build("4.9.7"), tmp_path_factory.mktemp("mqadmin-4.9") / "home")
    yield admin
    admin.close()


@pytest.mark.parametrize("story", list(STORIES))
def test_mqadmin_prints_the_same_of_either_broker(both: Both, story: str) -> None:
    for command, expected in STORIES[story]:
        answer = both.compare(command)
        assert expected in answer.out + answer.err, f"{' '.join(command)}: {expected!r} is not in\n{answer}"


def test_exported_files_say_the_same(both: Both) -> None:
    for file in ("configs.json", "metadata.json", "metrics.json", "topic.json", "subscriptionGroup.json"):
        for side in (both.apache, both.ours):
            if not (side.folder / file).exists():
                for command, _ in (*STORIES["exports"], *STORIES["topics made, changed and deleted"][:2]):
                    both.run(side, command)
                both.run(side, ("exportMetadata", "-b", "{broker}", "-g", "-f", "{folder}"))
        apaches, ours = (
            _without_own_values(json.loads((side.folder / file).read_text())) for side in (both.apache, both.ours)
        )
        assert apaches == ours, file


@pytest.mark.parametrize("command", list(DIFFERENT), ids=" ".join)
def test_where_we_differ_by_intent(both: Both, command: Command) -> None:
    of_apache, of_ours = DIFFERENT[command]
    for side, expected in ((both.apache, of_apache), (both.ours, of_ours)):
        answer = both.run(side, command)
        assert expected in answer.out + answer.err, f"{side.label}: {answer}"


@pytest.mark.parametrize("command", OF_4_9, ids=" ".join)
def test_mqadmin_of_4_9_understands_our_broker_as_it_does_apaches(
    both: Both, older_admin: MqAdmin, command: Command
) -> None:
    older = Both(older_admin, both.apache, both.ours)
    answer = older.compare(command)
    assert "Exception" not in answer.err


def test_prometheus_finds_the_same_metrics_with_the_same_labels(both: Both) -> None:
    apaches, ours = (_label_names(side.scrape()) for side in (both.apache, both.ours))
    ours = {name: labels for name, labels in ours.items() if not name.startswith("orbitmq_")}  # of no name of Apache's
    assert {name: labels for name, labels in apaches.items() if name in ours} == ours
    assert {name for name in apaches.keys() - ours.keys() if not re.search(NOT_EXPORTED, name)} == set()
    assert _figures(both.apache.scrape()) == _figures(both.ours.scrape())


def test_no_verb_of_mqadmin_is_forgotten(both: Both) -> None:
    printed = both.admin.run().out
    verbs = set(re.findall(r"^   (\w+) ", printed, re.MULTILINE))
    compared = {command[0] for story in STORIES.values() for command, _ in story}
    different = {command[0] for command in DIFFERENT}
    assert len(verbs) > 80
    assert verbs == compared | different | NOT_COMPARED.keys()


def test_no_request_code_is_forgotten(both: Both) -> None:
    apaches, ours = (wire.served(side.broker.address) for side in (both.apache, both.ours))
    assert len(apaches) > 90
    assert apaches - ours == NOT_SERVED


def _label_names(text: str) -> dict[str, set[frozenset[str]]]:
    """Of each metric, the combinations of labels it comes with.

    But for the name of the library that Apache uses, and whether a request was held: some pulls of Apache's say so, some do not.
    """
    found: dict[str, set[frozenset[str]]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+", text, re.MULTILINE):
        names = frozenset(re.findall(r'(\w+)="', labels))
        found.setdefault(name, set()).add(names - {"otel_scope_name", "is_long_polling"})
    return found


def _figures(text: str) -> dict[str, float]:
    """What was sent to the topic, and read of it by the group (not by mqadmin itself, which reads as a group of its own)."""
    names = r"rocketmq_(?:messages_in|messages_out|throughput_in|throughput_out)_total"
    found = {}
    for name, labels, value in re.findall(rf"^({names})\{{(.*)\}} (\S+)", text, re.MULTILINE):
        if 'topic="Orders"' in labels and re.search(r'consumer_group="(?!Readers")', labels) is None:
            found[name] = float(value)
    return found


def _normal(side: Side, command: Command, answer: AdminAnswer) -> AdminAnswer:
    """Without what must differ between two clusters that are otherwise the same."""
    out, err = (_without_places_and_times(side, text) for text in (answer.out, answer.err))
    verb = command[0]
    if verb in ("statsAll", "topicList", "queryMsgByOffset", "queryMsgById", "queryMsgByUniqueKey"):
        out = _without_topic_as_group(out)
    if verb == "brokerStatus":
        out = _without_own_figures(out)
    if verb == "getBrokerConfig":
        out = _settings_of_both(out)
    if verb == "consumerStatus":  # what the Java client knows of a queue: -1 until its first pull of it came back
        out = re.sub(r"commitOffset=-1\b", "commitOffset=0", out)
        out = re.sub(r"(?m)^(%RETRY%.* )-1\s*$", r"\g<1>0", out)
    if verb in ("topicList", "producer", "consumerStatus", "getColdDataFlowCtrInfo", "clusterList", "statsAll"):
        out = "\n".join(sorted(line.rstrip() for line in out.splitlines()))
    if verb in ("sendMsgStatus", "checkMsgSendRT"):
        out = re.sub(r"(rt=|true +|#RT\n|Avg RT: )[\d.]+(ms)?", r"\1N", out)
    return AdminAnswer(out, err, answer.exit_status)


def _without_places_and_times(side: Side, text: str) -> str:
    port = int(side.broker.address.rpartition(":")[2])
    for place, name in (
        (side.broker.address, "BROKER"),
        (side.name_server, "NAMESERVER"),
        (str(side.folder), "FOLDER"),
        (str(side.broker.folder), "HOME"),
        (f"7F000001{port:08X}", "BROKER-IN-HEX-"),
        (f"-{side.label}", ""),
    ):
        text = text.replace(place, name)
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text)
    text = re.sub(r"\b[0-9A-F]{32,}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME", text)
    text = re.sub(r"\b1[78]\d{11}\b", "MILLIS", text)
    text = re.sub(r"\b20\d{12}(\d{3})?\b", "WHEN", text)
    text = re.sub(r"@[0-9a-f]{5,8}\b", "@OBJECT", text)
    text = re.sub(
        r"(?<=\{)[^{}\n]*UNIQ_KEY=[^{}\n]*(?=\})", lambda found: ", ".join(sorted(found[0].split(", "))), text
    )
    # Rates, and how long ago something was: whoever is asked a moment later says something else.
    text = re.sub(r"(?<![\d.])\d+\.\d+(E-?\d+)?(?![\d.])", "RATE", text)
    text = re.sub(r"((?:CLUSTERING|spentTimeMills=) *)\d+", r"\1RATE", text)
    text = re.sub(r"(RATE\()\d+,\d+ms( *\| *\d+,\d+ms)*\)", r"\1LOAD)", text)
    return re.sub(r" +(RATE|TIME|MILLIS|CLIENT|BROKER)", r" \1", text)


def _without_topic_as_group(text: str) -> str:
    """To "who reads this topic" 5.3.3 answers with the topic's own name in place of the groups that are online."""
    text = re.sub(r"^.*\bOrders +Orders\b.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"MessageTrack \[consumerGroup=Orders,.*?\)\]\n?", "", text, flags=re.DOTALL)


def _without_own_figures(text: str) -> str:
    lines = []
    for line in text.splitlines():
        key, colon, value = line.partition(": ")
        lines.append(key + colon + ("OWN" if key.split()[-1:] and key.split()[-1].startswith(OWN_FIGURES) else value))
    return "\n".join(lines)


def _settings_of_both(text: str) -> str:
    """Those that Apache's broker has: ours alone begin with orbitmq."""
    pairs = (re.split(r" *= *", line, maxsplit=1) for line in text.splitlines() if " =" in line)
    shared = ((key, value) for key, value in pairs if not key.startswith("orbitmq."))
    return "\n".join(sorted(f"{key}={'OWN' if key in OWN_SETTINGS else value}" for key, value in shared))


def _without_own_values(value: object) -> object:
    """Of an exported file: rates, times, versions and addresses."""
    if isinstance(value, dict):
        return {
            re.sub(r"127\.0\.0\.1:\d+", "BROKER", key): _without_own_values(item)
            for key, item in value.items()
            if key not in ("dataVersion", "exportTime", *OWN_SETTINGS) and not key.endswith(("Tps", "Ratio"))
        }
    if isinstance(value, list):
        return [_without_own_values(item) for item in value]
    return re.sub(r"127\.0\.0\.1:\d+", "BROKER", value) if isinstance(value, str) else value
