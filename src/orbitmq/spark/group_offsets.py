"""What a query has done with, told to the brokers as the offsets of a consumer group: lag shows in the usual tools.

Spark tells a source of a finished micro-batch when the next one begins, so the last one of an availableNow query is never told.
`commit_finished` does that, for whoever ran the query:

    query.awaitTermination()
    commit_finished(query, {"nameServer": "127.0.0.1:9876", "subscribe": "Orders", "groupId": "lake"})
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.client import questions
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.spark.access import link
from orbitmq.spark.discovery import each
from orbitmq.spark.patience import patiently
from orbitmq.spark.queue_offsets import Offsets, from_progress, listed
from orbitmq.spark.source_options import source_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from orbitmq.client.cluster import Cluster
    from orbitmq.message import QueueRef

logger = logging.getLogger(__name__)


async def commit_offsets(cluster: Cluster, group: str, offsets: Offsets) -> Offsets:
    """What the brokers know now: of a broker without a master nothing is committed, because slaves take over their master's; of a topic that
    was deleted there is nothing to know."""

    async def commit(queue: QueueRef) -> bool:
        if queue.broker_name not in cluster.brokers:
            await cluster.fetch_route(queue.topic)
        master = cluster.master(queue.broker_name)
        if master is None:
            return False
        try:
            await cluster.ask(cluster.vip(master), questions.commit(group, queue, offsets[queue]), questions.SECONDS)
        except RequestFailed as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        return True

    known = await each(list(offsets), commit)
    left_out = {queue for queue, is_known in known.items() if not is_known}
    if left_out:
        logger.warning("not committed while there is no master: %s", listed(left_out))
    return {queue: offset for queue, offset in offsets.items() if queue not in left_out}


def commit_finished(query: StreamingQuery, options: Mapping[str, str]) -> Offsets:
    """Commit what the query's last finished micro-batch read, under its source's options; gives what was committed."""
    wanted = source_options({**options, "commitOffsets": "true"}, streaming=True)
    offsets = finished_offsets(query)
    here = link(wanted.access)
    topics = {queue.topic for queue in offsets}
    seconds = wanted.retry_ms / 1000
    return here.run(
        patiently(here.cluster, topics, seconds, lambda: commit_offsets(here.cluster, wanted.group, offsets))
    )


def finished_offsets(query: StreamingQuery) -> Offsets:
    """How far the query has come, by its last progress report; empty when it has not finished a micro-batch."""
    progress = query.lastProgress
    if progress is None:
        return {}
    ours = [offsets for source in progress.sources if (offsets := from_progress(source.endOffset)) is not None]
    if len(ours) != 1:
        raise ConfigError(f"the query has {len(ours)} rocketmq sources", hint="commit for queries with exactly one")
    return ours[0]
