"""Topics written down in TOML, to be created when a development server starts.

[topics.Orders]
queues = 8
attributes = { "message.type" = "FIFO" }
messages = ["first", "second"]    # sent when the topic is empty
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import msgspec

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    queues: int = 4
    ordered: bool = False
    attributes: dict[str, str] = {}
    messages: list[str] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, _Entry]


class TopicPlan(msgspec.Struct, frozen=True):
    name: str
    queues: int
    ordered: bool
    attributes: dict[str, str]
    messages: list[str]

    def attribute_changes(self) -> str:
        """As a topic's creation wants them."""
        return ",".join(f"+{key}={value}" for key, value in self.attributes.items())


def read_topics_file(path: Path) -> list[TopicPlan]:
    """ConfigError names the file and what is wrong in it."""
    try:
        content = tomllib.loads(path.read_text())
        entries = msgspec.convert(content, _File).topics
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="--topics takes a TOML file") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {error}", hint="write [topics.NAME] with queues, ordered, attributes, messages"
        ) from None
    return [
        TopicPlan(name, entry.queues, entry.ordered, entry.attributes, entry.messages)
        for name, entry in entries.items()
    ]
