"""Which groups have dead letters, while topics come and go."""

from __future__ import annotations

from orbitmq.admin.dead_letters import list_dead_letters
from orbitmq.admin.session import open_session
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.nameserver import DeleteTopic
from orbitmq.testing import Server


async def test_a_topic_of_dead_letters_that_no_name_server_knows_hides_no_others() -> None:
    """One that was just made is known to its broker first, one that was just deleted no more to name servers."""
    with Server() as server:
        server.create_topic("%DLQ%A", queues=1)
        server.create_topic("%DLQ%B", queues=1)
        async with open_session(server.address) as session:
            forget = DeleteTopic(topic="%DLQ%A", cluster_name=None)
            await session.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)
            assert [row.group for row in await list_dead_letters(session)] == ["B"]
