"""Every page on a live server: what is there is shown, and as JSON under the names of the command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orbitmq.admin.brokers import BrokerRow
from orbitmq.admin.groups import GroupRow
from orbitmq.admin.topics import TopicRow
from orbitmq.sync import connect
from orbitmq.transport.address import parse_address
from tests.broker.kit import Wire
from tests.cli.kit import Command, wait_until
from tests.console.visitor import give_up, read

if TYPE_CHECKING:
    from orbitmq.testing import Server
    from tests.console.visitor import Visitor


@pytest.fixture(scope="module", autouse=True)
def shop(server: Server) -> str:
    """A topic with three messages, one of them read by a group; the id of the one with markup in it."""
    with connect(server.address) as client, client.producer("shop") as producer:
        producer.send("Orders", b"first", tag="new", keys=["41"])
        receipt = producer.send("Orders", b"<script>alert(1)</script>", tag="new", keys=["42"])
        producer.send("Orders", b"\xff\xfe", tag="raw")
        read(client, "Orders", "Readers", 3)
    return receipt.message_id


def test_the_overview_shows_the_broker_and_its_figures(visitor: Visitor, server: Server) -> None:
    page = visitor.get("/")
    assert page.status == 200
    (broker,) = visitor.json("/")["brokers"]
    assert tuple(broker) == BrokerRow.__struct_fields__
    assert broker["broker"] in page.words
    assert broker["address"] in page.words
    assert 'data-live="2"' in page.text


@pytest.mark.parametrize("path", ["/nothing-here", "/topics/Orders/send"])
def test_an_address_without_a_page_is_told_as_a_page(visitor: Visitor, path: str) -> None:
    page = visitor.get(path)
    assert page.status == (405 if path.endswith("/send") else 404)
    assert "That did not work" in page.words
    assert path in page.words
    told = visitor.get(path, accept="application/json")
    assert (told.status, list(told.json)) == (page.status, ["problem", "cure"])


def test_the_overview_is_there_though_the_names_of_topics_are_shielded(visitor: Visitor, server: Server) -> None:
    orbitmq = Command(server.address)
    orbitmq.ok("mqadmin", "updateNamesrvConfig", "-k", "enableTopicList", "-v", "false")
    try:
        assert visitor.json("/")["clusters"][0]["topics"] is None
        assert "- topics" in visitor.get("/").words
        assert orbitmq.ok("cluster", "-o", "json").json[0]["topics"] is None
        assert orbitmq.ok("cluster").out
    finally:
        orbitmq.ok("mqadmin", "updateNamesrvConfig", "-k", "enableTopicList", "-v", "true")
    (cluster,) = visitor.json("/")["clusters"]
    assert f"{cluster['topics']} topics" in visitor.get("/").words


def test_a_broker_tells_everything_it_tells(visitor: Visitor) -> None:
    (broker,) = visitor.json("/")["brokers"]
    assert "msgPutTotalTodayNow" in visitor.get(f"/brokers/{broker['broker']}").words


def test_topics_are_listed_searched_and_chosen_by_kind(visitor: Visitor) -> None:
    (row,) = visitor.json("/topics?search=order")["topics"]
    assert tuple(row) == TopicRow.__struct_fields__
    assert (row["topic"], row["messages"]) == ("Orders", 3)
    assert "Orders" in visitor.get("/topics").words
    assert "Orders" not in [one["topic"] for one in visitor.json("/topics?kind=system")["topics"]]
    assert visitor.json("/topics?search=nothing-like-it")["topics"] == []


def test_a_topic_shows_queues_readers_and_its_newest_messages_as_text(visitor: Visitor) -> None:
    page = visitor.get("/topics/Orders")
    assert "<script>alert" not in page.text
    assert "<script>alert(1)</script>" in page.words or "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    shown = visitor.json("/topics/Orders")
    assert [row["group"] for row in shown["readers"]] == ["Readers"]
    assert sorted(row["body"] for row in shown["newest"]) == ["//4=", "<script>alert(1)</script>", "first"]
    assert sum(queue["messages"] for queue in shown["topic"]["queues"]) == 3


def test_a_retry_topic_with_percent_signs_in_its_name_has_a_page(visitor: Visitor) -> None:
    found = re.search(r'href="(/topics/%25RETRY%25Readers)"', visitor.get("/topics?kind=retry").text)
    assert found is not None
    assert visitor.get(found[1]).status == 200


def test_groups_show_members_and_lag(visitor: Visitor) -> None:
    (row,) = visitor.json("/groups?search=Readers")["groups"]
    assert tuple(row) == GroupRow.__struct_fields__
    wait_until(lambda: visitor.json("/groups/Readers")["group"]["lag"] == 0)
    page = visitor.get("/groups/Readers")
    assert "Orders" in page.words
    assert page.status == 200


def test_a_message_is_found_by_id_by_key_and_in_its_topic(visitor: Visitor, shop: str) -> None:
    for question in (f"id={shop}", f"id={shop}&topic=Orders", "topic=Orders&key=42"):
        (row,) = visitor.json(f"/messages?{question}")["messages"]
        assert row["id"] == shop
    assert len(visitor.json("/messages?topic=Orders")["messages"]) == 3
    assert visitor.json("/messages")["messages"] is None
    page = visitor.get(f"/messages/{shop}?topic=Orders")
    assert "Readers" in page.words
    assert "42" in page.words


async def test_a_message_whose_id_has_slashes_has_a_page(visitor: Visitor, server: Server) -> None:
    """Ids are what a producer says."""
    wire = Wire(parse_address(server.broker_address))
    await wire.send("Numbered", b"by another client", UNIQ_KEY="2026/11/16 no. 7?")
    await wire.close()
    link = 'href="(/messages/[^"]*)"><code>2026/11/16 no. 7\\?<'
    wait_until(lambda: re.search(link, visitor.get("/topics/Numbered").text) is not None)
    found = re.search(link, visitor.get("/topics/Numbered").text)
    assert found is not None
    wait_until(lambda: visitor.get(found[1]).status == 200)  # the index follows the queue
    assert "by another client" in visitor.get(found[1]).words


async def test_a_message_that_was_born_in_nanoseconds_has_a_page_and_spoils_none(
    visitor: Visitor, server: Server
) -> None:
    """The time is what a producer says."""
    wire = Wire(parse_address(server.broker_address))
    await wire.send("Odd", b"from far away", header={"born_timestamp": 1_700_000_000_123_456_789}, UNIQ_KEY="odd1")
    await wire.close()
    wait_until(lambda: visitor.get("/topics/Odd").status != 404)
    assert "from far away" in visitor.get("/topics/Odd").words
    assert visitor.json("/topics/Odd")["newest"][0]["born_at"].startswith("9999-12-30")
    wait_until(lambda: visitor.get("/messages/odd1?topic=Odd").status == 200)


def test_dead_letters_are_shown_by_group(visitor: Visitor, server: Server) -> None:
    assert visitor.get("/dead-letters").status == 200
    with connect(server.address) as client:
        with client.producer("shop") as producer:
            producer.send("Doomed", b"nobody wants me")
        give_up(client, "Doomed", "Refusing")
        wait_until(lambda: [row["group"] for row in visitor.json("/dead-letters")["groups"]] == ["Refusing"])
    (letter,) = visitor.json("/dead-letters/Refusing")["letters"]
    assert letter["body"] == "nobody wants me"
    assert "Send again" in visitor.get("/dead-letters/Refusing").words


def test_the_doctor_looks_at_the_cluster(visitor: Visitor) -> None:
    findings = visitor.json("/doctor")["findings"]
    assert {finding["verdict"] for finding in findings} <= {"ok", "warning"}
    assert "name server" in visitor.get("/doctor").words


@pytest.mark.parametrize(
    ("path", "status", "cause"),
    [
        ("/topics/Nowhere", 404, "topic 'Nowhere' does not exist"),
        ("/groups/Nobody", 404, "Nobody"),
        ("/messages?id=0123", 404, "there is no message 0123"),
        ("/dead-letters/Nobody", 404, "group 'Nobody' has no dead letters"),
        ("/brokers/none", 404, "none"),
    ],
)
def test_what_is_not_there_is_said_with_a_cure(visitor: Visitor, path: str, status: int, cause: str) -> None:
    page = visitor.get(path)
    assert page.status == status, page.words
    assert cause in page.words
    assert "What to do:" in page.words
    as_json = visitor.get(path, accept="application/json").json
    assert cause in as_json["problem"]
    assert as_json["cure"]


@pytest.mark.parametrize("page", ["0", "-1", "99999999999", "one"])
def test_a_page_number_that_is_none_shows_one_that_is(visitor: Visitor, page: str) -> None:
    assert visitor.json(f"/topics?page={page}&search=Orders")["topics"]
