"""The consumer groups of this broker, and how each may consume. Java: SubscriptionGroupManager"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.saved_table import SavedTable
from orbitmq.broker.topics import MOST_QUEUES
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage.files import is_file_name
from orbitmq.storage.tables import DataVersion, GroupConfig, GroupTable
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.rates import PerMinute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.storage.json_file import JsonFile

logger = logging.getLogger(__name__)

_SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_READ_FORBIDDEN_BIT: Final = 1 << 2


class Groups:
    def __init__(
        self,
        file: JsonFile[GroupTable],
        configuration: BrokerConfiguration,
        clock: Clock,
        refusals: Refusals | None = None,
    ) -> None:
        table = file.load()
        self.version = table.data_version
        self._groups = _bounded(table.subscription_group_table)
        self.forbidden = table.forbidden_table  # group -> topic -> bits; empty while nobody is forbidden anything
        self._unknown = table.unknown
        self._configuration = configuration
        self._clock = clock
        self._has_light_queues = configuration.settings.enable_lmq
        self._creations = PerMinute(
            "orbitmq.groupsCreatedPerMinute",
            "new groups",
            lambda: configuration.settings.groups_created_per_minute,
            clock,
            refusals or Refusals(),
        )
        self._saved = SavedTable(file, self._snapshot)
        for group in _SYSTEM_GROUPS:
            if group not in self._groups:
                self._groups[group] = GroupConfig(group_name=group)

    def all(self) -> dict[str, GroupConfig]:
        return self._groups

    def get(self, group: str) -> GroupConfig | None:
        config = self._groups.get(group)
        is_light = self._has_light_queues and group.startswith(names.LIGHT_PREFIX)
        if config is None and is_light and is_file_name(names.retry_topic(group)):
            return GroupConfig(group_name=group)  # in no table: there may be one for each light queue
        return config

    def find(self, group: str) -> GroupConfig | None:
        """The group, made if that is allowed."""
        config = self.get(group)
        if config is None and (
            self._configuration.settings.auto_create_subscription_group or names.is_system_group(group)
        ):
            names.check_group_name(group)
            self._creations.take()
            config = GroupConfig(group_name=group)
            self._groups[group] = config
            self._bump()
            self._saved.save_soon()
            logger.info("created group %s at its first use", group)
        return config

    def require(self, group: str) -> GroupConfig:
        config = self.find(group)
        if config is None:
            raise RequestFailed(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group[:300]}] does not exist",
                hint="create it, or start the broker with autoCreateSubscriptionGroup=true",
            )
        return config

    async def update(self, configs: Iterable[GroupConfig]) -> None:
        wanted = list(configs)
        for config in wanted:
            names.check_group_name(config.group_name)
            if config.retry_queue_nums < 0 or config.retry_max_times < -1:
                raise RequestFailed(
                    ResponseCode.INVALID_PARAMETER, f"group {config.group_name}: negative retry numbers"
                )
            if config.attributes:
                raise RequestFailed(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {config.group_name}: unsupported key: {next(iter(config.attributes))[:300]}",
                    hint="groups have no attributes, only topics have",
                )
            if config.retry_queue_nums > MOST_QUEUES:
                raise RequestFailed(
                    ResponseCode.INVALID_PARAMETER,
                    f"group {config.group_name}: a retry topic has up to {MOST_QUEUES} queues",
                )
        self._creations.take(len({config.group_name for config in wanted} - self._groups.keys()))
        for config in wanted:
            known = self._groups.get(config.group_name)
            if known is not None:
                # Of a store that a later release wrote: kept, as Apache's broker keeps them.
                config.attributes = known.attributes
            self._groups[config.group_name] = config
        self._bump()
        await self._saved.save()

    async def take_over(self, table: GroupTable) -> None:
        """A slave has the groups of its master, in the version they have there."""
        if table.data_version == self.version:
            return
        self._groups = _bounded(table.subscription_group_table)
        self.forbidden = table.forbidden_table
        self.version = table.data_version
        await self._saved.save()

    async def delete(self, group: str) -> None:
        if self._groups.pop(group, None) is not None:
            self.forbidden.pop(group, None)
            self._bump()
            logger.info("deleted group %s", group)
            await self._saved.save()

    def disable(self, group: str) -> None:
        """Stop a group that reads too slowly from reading."""
        config = self._groups.get(group)
        if config is not None and config.consume_enable:
            config.consume_enable = False
            self._bump()
            self._saved.save_soon()

    def may_read(self, group: str, topic: str) -> bool:
        return not self.forbidden.get(group, {}).get(topic, 0) & _READ_FORBIDDEN_BIT

    async def set_may_read(self, group: str, topic: str, readable: bool) -> None:
        topics = self.forbidden.setdefault(group, {})
        if readable:
            topics.pop(topic, None)
        else:
            topics[topic] = topics.get(topic, 0) | _READ_FORBIDDEN_BIT
        if not topics:
            del self.forbidden[group]
        if (config := self._groups.get(group)) is not None:
            self._groups[group] = copy(config)  # compiled loops remember what they may as long as it is the same object
        self._bump()
        await self._saved.save()

    def table(self) -> GroupTable:
        return self._snapshot()

    async def save(self) -> None:
        await self._saved.save_or_log()

    @property
    def is_settled(self) -> bool:
        return self._saved.is_settled

    async def settle(self) -> None:
        await self._saved.settle()

    def _bump(self) -> None:
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock.now_ms())

    def _snapshot(self) -> GroupTable:
        return GroupTable(
            data_version=self.version,
            subscription_group_table=dict(self._groups),
            forbidden_table={group: dict(topics) for group, topics in self.forbidden.items()},
            unknown=self._unknown,
        )


def _bounded(groups: dict[str, GroupConfig]) -> dict[str, GroupConfig]:
    """As others wrote them, but for retry topics of more queues than a topic can have."""
    for config in groups.values():
        config.retry_queue_nums = min(config.retry_queue_nums, MOST_QUEUES)
    return groups
