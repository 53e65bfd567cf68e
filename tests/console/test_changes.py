"""What forms do, seen on the server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orbitmq.admin import dead_letters
from orbitmq.sync import connect
from tests.cli.kit import wait_until
from tests.console.visitor import give_up, read

if TYPE_CHECKING:
    from orbitmq.admin.session import Session
    from orbitmq.testing import Server
    from tests.console.visitor import Page, Visitor


def submit(visitor: Visitor, page: str, action: str, **values: str) -> Page:
    return visitor.post(action, {"form_token": visitor.get(page).form_token, **values})


def test_a_topic_is_made_written_to_and_deleted(visitor: Visitor, server: Server) -> None:
    made = submit(visitor, "/topics", "/topics", topic="Parcels", queues="3")
    assert made.url.endswith("/topics/Parcels")
    assert len(visitor.json("/topics/Parcels")["topic"]["queues"]) == 3
    sent = submit(visitor, "/topics/Parcels", "/topics/Parcels/send", body="für dich", tag="new", keys="7 8")
    assert "für dich" in sent.words
    (message,) = server.expect("Parcels", body="für dich".encode())
    assert (message.tag, message.keys) == ("new", ["7", "8"])

    kept = submit(visitor, "/topics/Parcels", "/topics/Parcels/delete", confirmed="Parcel")
    assert kept.status == 400
    assert "its name was not typed" in kept.words
    gone = submit(visitor, "/topics/Parcels", "/topics/Parcels/delete", confirmed="Parcels")
    assert gone.url.endswith("/topics")
    assert visitor.get("/topics/Parcels").status == 404


def test_a_topic_that_is_there_is_not_made_again(visitor: Visitor) -> None:
    submit(visitor, "/topics", "/topics", topic="Twice")
    again = submit(visitor, "/topics", "/topics", topic="Twice")
    assert again.status == 400
    assert "exists" in again.words


def test_a_reset_shows_its_plan_before_it_is_done(visitor: Visitor, server: Server) -> None:
    with connect(server.address) as client, client.producer("p") as producer:
        for number in range(5):
            producer.send("Replayed", b"%d" % number)
        read(client, "Replayed", "Replayers", 5)
    wait_until(lambda: visitor.json("/groups/Replayers")["group"]["lag"] == 0)

    plan = submit(visitor, "/groups/Replayers", "/groups/Replayers/reset", goal="earliest", topic="Replayed")
    assert "Nothing has been changed yet" in plan.words
    assert visitor.json("/groups/Replayers")["group"]["lag"] == 0
    done = visitor.post(
        "/groups/Replayers/reset",
        {"form_token": plan.form_token, "goal": "earliest", "topic": "Replayed", "confirmed": "yes"},
    )
    assert done.url.endswith("/groups/Replayers")
    assert visitor.json("/groups/Replayers")["group"]["lag"] == 5


def test_a_dead_letter_goes_to_its_group_again(
    visitor: Visitor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def moved(session: Session, message_id: str) -> None:
        """Of a broker that has another address now than the id says."""

    with connect(server.address) as client:
        with client.producer("p") as producer:
            producer.send("Returned", b"once more")
        give_up(client, "Returned", "Returners")
        wait_until(lambda: visitor.get("/dead-letters/Returners").status == 200)
        wait_until(lambda: len(visitor.json("/dead-letters/Returners")["letters"]) == 1)
        (letter,) = visitor.json("/dead-letters/Returners")["letters"]
        page, action = "/dead-letters/Returners", "/dead-letters/Returners/resend"
        assert "no dead letter" in submit(visitor, page, action, id="other").words
        assert submit(visitor, page, action, id=letter["offset_id"]).status == 200
        with client.consumer("Returned", group="Returners") as consumer:
            assert next(iter(consumer)).body == b"once more"
        monkeypatch.setattr(dead_letters, "storing_broker", moved)
        assert submit(visitor, page, action, id=letter["offset_id"]).status == 200


def test_the_letters_that_a_page_shows_are_sent_again_and_none_that_came_since(
    visitor: Visitor, server: Server
) -> None:
    def letters() -> list[str]:
        return [row["body"] for row in visitor.json("/dead-letters/Undelivered")["letters"]]

    shown = {f"letter {number}" for number in range(100)}  # as many as a page shows, all in one queue
    with connect(server.address) as client:
        with client.producer("p") as producer:
            for body in shown:
                producer.send("Letters", body.encode())
        give_up(client, "Letters", "Undelivered", len(shown))
        wait_until(lambda: visitor.get("/dead-letters/Undelivered").status == 200)
        wait_until(lambda: len(letters()) == len(shown))
        page = visitor.get("/dead-letters/Undelivered")
        with client.producer("p") as producer:
            producer.send("Letters", b"a later one")
        give_up(client, "Letters", "Undelivered", 1)
        wait_until(lambda: "a later one" in letters())
    found = re.search(r'name="id" value="(\w+(?: \w+)+)"', page.text)
    assert found is not None
    values = {"form_token": page.form_token, "id": found[1]}
    assert visitor.post("/dead-letters/Undelivered/resend", values).status == 200
    again = visitor.json("/messages?topic=%25RETRY%25Undelivered")["messages"]
    assert {row["body"] for row in again} == shown
    assert sum(queue["messages"] for queue in visitor.json("/topics/%25RETRY%25Undelivered")["topic"]["queues"]) == 100


@pytest.mark.parametrize(
    ("action", "values", "cause"),
    [
        ("/topics", {"topic": ""}, "the form has no topic"),
        ("/topics", {"topic": "Odd", "queues": "many"}, "queues cannot be 'many'"),
        ("/topics", {"topic": "Odd", "queues": "0"}, "queues cannot be '0'"),
        ("/topics", {"topic": "Odd", "queues": "8" * 5000}, "queues cannot be '88"),
        ("/topics", {"topic": "no spaces please"}, "no spaces please"),
        ("/groups/Nobody/reset", {"goal": "yesterday"}, "'yesterday' is no place to go to"),
        ("/groups/Nobody/reset", {"goal": "0001-01-01T00:00:00+23:59"}, "+23:59' is no place to go to"),
        ("/groups/Nobody/reset", {"goal": "9999-12-31T23:59:59-23:59"}, "-23:59' is no place to go to"),
    ],
)
def test_a_form_that_makes_no_sense_is_told_why(
    visitor: Visitor, action: str, values: dict[str, str], cause: str
) -> None:
    page = submit(visitor, "/topics", action, **values)
    assert page.status == 400
    assert cause in page.words
