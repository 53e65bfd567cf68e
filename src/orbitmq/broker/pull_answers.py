"""The answer to a pull that found messages, as a frame: a short header, and views of the log, not copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.protocol import versions
from orbitmq.protocol.codes import FLAG_RESPONSE
from orbitmq.protocol.frame import MAX_FRAME_BYTES, lengths

if TYPE_CHECKING:
    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.tables import GroupConfig, TopicConfig

_FOUND: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%%d","minOffset":"%%d","maxOffset":"%%d",'
    b'"topicSysFlag":"%%d","groupSysFlag":"%%d"},"flag":%d,"language":"PYTHON","opaque":%%d,"remark":"FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (FLAG_RESPONSE, versions.OURS)
)
FOUND_TEXTS: Final = _FOUND.split(b"%d")  # what stands between its numbers


def found_frame(
    result: ReadResult, topic: TopicConfig, group: GroupConfig, opaque: int
) -> list[bytes | memoryview] | None:
    """For who is not sent to another replica; None if it is larger than a frame may be."""
    header = _FOUND % (
        result.next_offset,
        result.min_offset,
        result.max_offset,
        topic.topic_sys_flag,
        group.group_sys_flag,
        opaque,
    )
    length = 4 + len(header) + result.total_bytes
    if length + 4 > MAX_FRAME_BYTES:
        return None
    return [lengths(length, len(header)) + header, *result.buffers]
