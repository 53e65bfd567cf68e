"""What is typed, in which order: one story for our servers and for Apache's. `tour.py` tells it.

Words in braces are the cluster's and the tour's own. A command that is in no part of the story fails test_every_command.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Typed(NamedTuple):
    """What is typed behind `orbitmq`; a part of what it prints; its exit code. Failures are told in one line."""

    text: str
    says: str = ""
    code: int = 0


# Handles what is good, and gives up at once what is bad.
APP: Final = """
import orbitmq as mq
app = mq.App(credentials={credentials})
@app.subscriber("{topic}", group="{group}", start="earliest")
async def handle(message: mq.Message) -> None:
    if message.tag == "bad":
        raise mq.RetryLater("no use", delay_level=-1)
"""

SENDS: Final = (
    Typed("msg send {topic} hello --queue {broker}:0 --key k1 --tag bad -o json", '"SEND_OK"'),
    Typed("msg send {topic} hello --queue {broker}:1 --key k2 --tag good -o json", '"SEND_OK"'),
)
BEFORE: Final = (
    Typed("completion bash", "_ORBITMQ_COMPLETE"),
    Typed("cluster -o json", '"masters": 1'),
    Typed("broker ls -o json", '"{broker}"'),
    Typed("broker describe {broker} -o json", '"brokerVersionDesc"'),
    Typed("broker config {broker} fileReservedTime=50 --yes", "changed fileReservedTime on {broker}"),
    Typed("broker config {broker} fileReservedTime -o json", '"50"'),
    Typed("topic create {topic} -q 2", "{topic}"),
    Typed("topic update {topic} -q 3", "{topic}"),
    Typed("topic describe {topic} -o json", '"write_queues": 3'),
    Typed("topic ls {topic} -o json", '"{topic}"'),
    Typed("group create {group} --max-retries 3", "{group}"),
    Typed("group update {group} --max-retries 2", "{group}"),
    *SENDS,
    Typed("msg get {id} --topic {topic} -o json", '"k2"'),
    Typed("msg find {topic} --key k1 -o json", '"bad"'),
    Typed("topic tail {topic} --from earliest --count 2 -o json", '"good"'),
    Typed("store ls {store} --topic {topic} -o json", '"messages": 1'),
    Typed("store dump {store} --topic {topic} -o json", '"k1"'),
)
WHILE_THE_APP_RUNS: Final = (
    Typed("group connections {group} -o json", '"PYTHON"'),
    Typed("group ls {group} -o json", '"{group}"'),
    Typed("group describe {group} -o json", '"max_retries": 2'),
    Typed("group lag {group} --topic {topic} -o json", '"lag": 0'),
    Typed("group lag {group} --queues -o json", '"committed": 1'),
    Typed("msg trace {id} --topic {topic} -o json", '"{group}"'),
    Typed("broker stats --topic {topic} -o json", '"{topic}"'),
    Typed("dlq ls -o json", '"{group}"'),
    Typed("dlq ls {group} -o json", '"k1"'),
    Typed("dlq export {group}", '"k1"'),
    Typed("dlq resend {group} --yes", "sent 1 dead letters again"),
    Typed("doctor --topic {topic} --group {group} -o json", "they subscribe to the same"),
)
AFTER: Final = (
    Typed("group create {copy}", "{copy}"),
    Typed("group reset {copy} --topic {topic} --to-earliest --yes", "{copy}"),
    Typed("group clone {group} {copy} --topic {topic} --yes", "{copy}"),
    Typed("group lag {copy} --queues -o json", '"committed": 1'),
    Typed("bench --topic {topic} --messages 50 --size 10 --read -o json", '"messages": 50'),
    Typed("acl user create {user} --password a-secret", "created user {user}"),
    Typed("acl user update {user} --password another-secret", "changed user {user}"),
    Typed("acl user ls -o json", '"{user}"'),
    Typed("acl grant {user} Topic:{topic} --action Sub", "allowed {user} Sub on Topic:{topic}"),
    Typed("acl policy grant {user} Group:{group} --action Sub", "allowed {user} Sub"),
    Typed("acl ls {user} -o json", '"Topic:{topic}"'),
    Typed("acl policy ls {user} -o json", '"Group:{group}"'),
    Typed("acl check {user} Sub Topic:{topic} -o json", '"allowed": true'),
    Typed("acl check {user} Pub Topic:{topic} -o json", '"allowed": false', code=5),
    Typed("acl export -o json", '"{user}"'),
    Typed("acl revoke {user} --resource Topic:{topic} --yes", "took 1 policies"),
    Typed("acl policy revoke {user} --yes", "took 1 policies"),
    Typed("acl user rm {user} --yes", "deleted user {user}"),
    Typed("mqadmin clusterList", "{broker}"),
    Typed("group rm {copy} --yes", "{copy}"),
    Typed("topic rm {topic} --yes", "{topic}"),
)
MENDING: Final = (
    Typed("store verify {damaged} -o json", '"commitlog/stray"', code=1),
    Typed("store repair {damaged} --dry-run -o json", '"kept_in": null'),
    Typed("store repair {damaged} --yes -o json", '"move commitlog/stray aside"'),
    Typed("store verify {damaged} -o json", '"findings": []'),
)
# Of Spark's commands. Each start of Spark takes seconds: one of every command, on either cluster.
BEFORE_SPARK: Final = (Typed("topic create {topic} -q 2", "{topic}"), *SENDS)
UNTIL_SPARK: Final = (Typed("dlq ls {group} -o json", '"k1"'),)
_PLACE: Final = "USING (topic, queueId, queueOffset)"
SPARK: Final = (
    Typed("spark archive {topic} --to lake --by topic --batch 1", "archived 3 messages of 1 topics in 3 batches"),
    Typed("spark compact lake", "compacted 3 files into 1"),
    Typed("spark export-store {store} --topic {topic} --to exported", "exported 3 messages"),
    Typed(
        f"spark sql 'SELECT count(*) AS held FROM {{topic}} JOIN lake {_PLACE} JOIN store {_PLACE}'"
        " -t {topic} --lake lake --store {store} -o json",
        '"held": 3',
    ),
    Typed("spark stats -t {topic} -o json", '"messages": 3'),
    Typed("spark dlq {group} -o json", '"origin_topic": "{topic}"'),
    Typed("spark trace -o json", '"stage": "produce"'),
    Typed("pipeline init shop -t {topic}", "made shop/pipeline.toml"),
    Typed("pipeline run shop/pipeline.toml", "clean: 3 rows read"),
    Typed("spark replay --lake lake --tags good", "sent 1 messages"),
    Typed("msg find {topic} --key k2 -o json", '"REPLAY_MSG_ID"'),
    Typed("spark sql 'SELECT * FROM NoSuch' -t NoSuch", "topic 'NoSuch' does not exist", code=4),
)
# What needs no other cluster: tables for people, and what is refused.
SPARK_FOR_PEOPLE: Final = (
    Typed("spark sql 'SELECT tags, topic FROM lake ORDER BY tags' --lake lake", "TAGS    TOPIC"),
    Typed("spark stats --lake lake", "largest:"),
    Typed("spark dlq {group} --resend --to-all --yes", "messages to the topics they came from"),
    Typed("spark replay -t {topic}", "give --to", code=2),
    Typed("spark trace -n nonsense", "'nonsense' is not an address", code=2),
    Typed("pipeline run nowhere.toml", "`orbitmq pipeline init` makes one", code=1),
)
STORY: Final = (*BEFORE, *WHILE_THE_APP_RUNS, *AFTER, *MENDING, *SPARK)
IN_THE_BACKGROUND: Final = {"run", "console"}
