"""The broker's settings, under Apache's names. `java_settings.py` lists those that have no meaning here.

Java: BrokerConfig, MessageStoreConfig, NettyServerConfig
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.access.settings import ACCESS_SETTINGS, AccessSettings
from orbitmq.broker.java_settings import WITHOUT_EFFECT
from orbitmq.broker.settings_bounds import NO_HOUR, check_bounds, fit, shown
from orbitmq.configuration import Configuration, read_properties_file, read_settings, strange_tls_keys
from orbitmq.errors import ConfigError
from orbitmq.storage.config import FlushMode, StorageConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whoever could change these from afar could make the broker read or write files of their choice, be someone else, or not start
# again, or not find what is leased or timed: a store is opened with the sizes it was written with, and ports and addresses may be
# taken, or another machine's.
NEVER_CHANGEABLE: Final = frozenset(
    {
        "aclEnable",
        "brokerConfigPath",
        "configBlackList",
        "storePathRootDir",
        "storePathCommitLog",
        "rocketmqHome",
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "brokerRole",
        "listenPort",
        "bindAddress",
        "haListenPort",
        "metricsPromExporterPort",
        "metricsPromExporterHost",
        "orbitmq.haTls",
        "orbitmq.haAuthentication",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mappedFileSizeConsumeQueueExt",
        "mapperFileSizeBatchConsumeQueue",
        "mappedFileSizeTimerLog",
        "compactionMappedFileSize",
        "compactionCqMappedFileSize",
        "timerPrecisionMs",
        "reviveQueueNum",
    }
)

_DELAY_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY_LEVEL: Final = re.compile(r"([0-9]{1,9})([smhd])")
_LONGEST_DELAY_MS: Final = 10 * 365 * 86_400_000  # when a message is due is kept in 64 bits, with its store time
_MOST_DELAY_LEVELS: Final = 1000
_HOUR: Final = re.compile(r"\s*([0-9]{1,2})\s*")


class Settings(AccessSettings, rename="camel", kw_only=True, frozen=True):
    # Who and where
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = msgspec.field(default_factory=socket.gethostname)
    broker_id: int = 0
    broker_role: str = "ASYNC_MASTER"
    namesrv_addr: str = msgspec.field(default_factory=lambda: os.environ.get("NAMESRV_ADDR", ""))
    fetch_namesrv_addr_by_address_server: bool = False
    fetch_name_srv_addr_by_dns_lookup: bool = False
    broker_ip1: str = msgspec.field(name="brokerIP1", default="")
    broker_ip2: str = msgspec.field(name="brokerIP2", default="")
    bind_address: str = "0.0.0.0"  # noqa: S104 - Apache's default; clients come from other machines
    listen_port: int = 10911
    ha_listen_port: int = 0  # 0: listenPort + 1
    broker_permission: int = 6
    region_id: str = "DefaultRegion"
    config_black_list: str = "configBlackList;brokerConfigPath"
    rocketmq_home: str = msgspec.field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    acl_enable: bool = False  # the access files of 4.x
    # Copies on slaves
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False
    broker_heartbeat_interval: int = 1000
    broker_not_active_timeout_millis: int = 10_000
    sync_broker_member_group_period: int = 1000
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000  # ms without a word, and the connection is closed
    ha_transfer_batch_size: int = 32 << 10
    ha_max_gap_not_in_sync: int = 256 << 20
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = 100 << 20
    in_sync_replicas: int = 1  # the master counts: 2 is one slave
    slave_timeout: int = 3000
    sync_from_last_file: bool = False
    ha_tls: bool = msgspec.field(default=False, name="orbitmq.haTls")  # on masters and slaves alike
    ha_authentication: bool = msgspec.field(default=False, name="orbitmq.haAuthentication")
    # Registration
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    force_register: bool = True
    compressed_register: bool = False
    # Topics and groups
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    clear_retry_topic_when_delete_topic: bool = True
    max_topic_length: int = 127
    # Sending
    max_message_size: int = 4 << 20
    start_accept_send_request_time_stamp: int = 0
    reject_transaction_message: bool = False
    transaction_time_out: int = 6000  # ms a producer has before it is asked
    transaction_check_interval: int = 30_000
    transaction_check_max: int = 15
    store_reply_message_enable: bool = True
    send_thread_pool_queue_capacity: int = 10_000  # sends that may wait for the disk
    wait_time_mills_in_send_queue: int = 200
    os_page_cache_busy_time_out_mills: int = (
        1000  # beyond the 3 s clients wait: stalled for longer, a broker refuses what queued up
    )
    # Pulling
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    lite_pull_message_enable: bool = True
    slave_read_enable: bool = False
    enable_property_filter: bool = False  # SQL92 filters
    enable_calc_filter_bit_map: bool = False  # which of them a message matches is kept beside its queue entry
    expect_consumer_num_use_filter: int = 32
    max_error_rate_of_bloom_filter: int = 20  # percent
    filter_data_clean_time_span: int = 86_400_000
    use_server_side_reset_offset: bool = True
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    # Leases
    revive_queue_num: int = 8
    revive_interval: int = 1000
    pop_from_retry_probability: int = 20  # percent of pops that look at the retry topic first
    enable_retry_topic_v2: bool = msgspec.field(name="enableRetryTopicV2", default=False)
    retrieve_message_from_pop_retry_topic_v1: bool = msgspec.field(
        name="retrieveMessageFromPopRetryTopicV1", default=True
    )
    pop_response_return_actual_retry_topic: bool = False
    pop_polling_size: int = 1024  # pops that may wait at one place
    max_pop_polling_size: int = 100_000
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_pop_message_threshold: bool = False
    pop_inflight_message_threshold: int = 10_000
    server_load_balancer_enable: bool = True
    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = -1
    # Clients
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: int = 120_000
    flush_consumer_offset_interval: int = 5000
    flush_delay_offset_interval: int = 10_000
    consumer_offset_update_version_step: int = 500
    disable_consume_if_consumer_read_slowly: bool = False
    consumer_fallbehind_threshold: int = 16 << 30
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    # Timers
    timer_wheel_enable: bool = True
    timer_precision_ms: int = 1000
    timer_max_delay_sec: int = 259_200
    timer_roll_window_slot: int = 172_800
    timer_flush_interval_ms: int = 1000
    timer_congest_num_each_slot: int = (
        2**31 - 1
    )  # above it sends for that moment are refused by chance, above twice it all
    timer_stop_enqueue: bool = False
    timer_stop_dequeue: bool = False
    mapped_file_size_timer_log: int = 100 << 20
    recall_message_enable: bool = False
    allow_recall_when_broker_not_writeable: bool = True
    # Compaction
    enable_compaction: bool = True
    compaction_schedule_internal: int = 900_000
    compaction_mapped_file_size: int = 100 << 20
    compaction_cq_mapped_file_size: int = 10 << 20
    # Connections
    server_channel_max_idle_time_seconds: int = 120
    server_socket_backlog: int = 1024
    # Store
    store_path_root_dir: str = msgspec.field(default_factory=lambda: str(Path.home() / "store"))
    store_path_commit_log: str = ""
    store_type: str = "default"
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    mapped_file_size_consume_queue_ext: int = 48 << 20
    enable_consume_queue_ext: bool = False
    mapper_file_size_batch_consume_queue: int = 13_800_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    message_index_safe: bool = False
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    warm_maped_file_enable: bool = False
    check_crc_on_recover: bool = msgspec.field(name="checkCRCOnRecover", default=True)
    enabled_append_prop_crc: bool = msgspec.field(name="enabledAppendPropCRC", default=False)
    force_verify_prop_crc: bool = msgspec.field(name="forceVerifyPropCRC", default=False)
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000
    max_filter_message_size: int = 16_000
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    file_reserved_time: int = 72
    delete_when: str = "04"
    clean_resource_interval: int = 10_000
    clean_file_forcibly_enable: bool = True
    delete_commit_log_files_interval: int = 100
    delete_file_batch_max: int = 10
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    # Limits, with those of LoadLimits; 0: none
    topics_created_per_minute: int = msgspec.field(default=0, name="orbitmq.topicsCreatedPerMinute")
    groups_created_per_minute: int = msgspec.field(default=0, name="orbitmq.groupsCreatedPerMinute")
    # Metrics
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_port: int = 5557
    metrics_prom_exporter_host: str = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.broker_name:
            raise ConfigError("brokerName is empty")
        if self.is_slave != (self.broker_id > 0):
            raise ConfigError(
                f"brokerId={self.broker_id} cannot be with brokerRole={self.broker_role}",
                hint="a master has brokerId=0, a slave (brokerRole=SLAVE) a greater one and the brokerName of its master",
            )
        self.storage_config()  # checks itself
        self.check_access()
        if self.ha_authentication and not (self.acl_enable or self.authentication_enabled):
            raise ConfigError(
                "orbitmq.haAuthentication=true without users: nobody knows who a slave may be",
                hint="set authenticationEnabled=true, or aclEnable=true",
            )
        if self.ha_authentication and self.is_slave and self.own_credentials() is None:
            raise ConfigError(
                "orbitmq.haAuthentication=true, and this slave has no name",
                hint="set innerClientAuthenticationCredentials",
            )
        if self.acl_enable and self.is_guarded:
            raise ConfigError(
                "aclEnable=true beside authenticationEnabled or authorizationEnabled: which of the two is to decide?",
                hint="leave aclEnable to files of 4.x, or move them over and switch it off",
            )

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "SLAVE"

    @property
    def copies_awaited(self) -> int:
        """How many slaves must have a message before its sender is told that it is safe."""
        return max(0, self.in_sync_replicas - 1) if self.broker_role == "SYNC_MASTER" else 0

    def access_file(self) -> Path:
        """Where 4.x keeps its accounts."""
        home = Path(self.rocketmq_home) / "conf" if self.rocketmq_home else Path(self.store_path_root_dir) / "config"
        return home / "plain_acl.yml"

    def delay_levels_ms(self) -> tuple[int, ...]:
        """What delay level 1, 2, ... means."""
        levels = []
        for part in self.message_delay_level.split():
            match = _DELAY_LEVEL.fullmatch(part)
            if match is None:
                raise ConfigError(
                    f"messageDelayLevel has {shown(part)!r}", hint="write each level as 10s, 5m, 2h or 1d"
                )
            levels.append(int(match[1]) * _DELAY_UNITS_MS[match[2]])
            if levels[-1] > _LONGEST_DELAY_MS:
                raise ConfigError(f"messageDelayLevel has {part}", hint="ten years (3650d) are the most")
        if not 0 < len(levels) <= _MOST_DELAY_LEVELS:
            raise ConfigError(
                f"messageDelayLevel has {len(levels):,} levels",
                hint=f"name at least one, as in 1s 5s 10s, and {_MOST_DELAY_LEVELS:,} at most",
            )
        return tuple(levels)

    @property
    def _has_write_pool(self) -> bool:
        return (
            self.transient_store_pool_enable and not self.is_slave
        )  # as in Java: a slave writes no records of its own

    def _delete_hours(self) -> tuple[int, ...]:
        """None where all that is named never comes. Where no hour is named at all, what is meant is not known."""
        named = [int(hour[1]) for hour in map(_HOUR.fullmatch, self.delete_when.split(";")) if hour is not None]
        return tuple(hour for hour in named if hour != NO_HOUR) if named else (4,)

    def storage_config(self) -> StorageConfig:
        return StorageConfig(
            directory=Path(self.store_path_root_dir),
            commit_log_directory=Path(self.store_path_commit_log) if self.store_path_commit_log else None,
            segment_bytes=self.mapped_file_size_commit_log,
            queue_file_bytes=self.mapped_file_size_consume_queue,
            batch_queue_file_bytes=self.mapper_file_size_batch_consume_queue,
            queue_extensions=self.enable_consume_queue_ext,
            queue_extension_file_bytes=self.mapped_file_size_consume_queue_ext,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            warm_up_segments=self.warm_maped_file_enable,
            max_message_bytes=self.max_message_size,
            delay_levels_ms=self.delay_levels_ms(),
            record_crc=self.enabled_append_prop_crc,
            light_queues=self.enable_lmq and self.enable_multi_dispatch,
            max_light_queues=self.max_lmq_consume_queue_num,
            key_index=self.message_index_enable,
            compacted_log_bytes=self.compaction_mapped_file_size,
            compacted_queue_bytes=self.compaction_cq_mapped_file_size,
            timer_precision_ms=self.timer_precision_ms,
            timer_roll_window_slots=self.timer_roll_window_slot,
            timer_log_file_bytes=self.mapped_file_size_timer_log,
            flush_mode=FlushMode(self.flush_disk_type),
            flush_every_ms=self.flush_interval_commit_log,
            flush_least_pages=self.flush_commit_log_least_pages,
            flush_thorough_every_ms=self.flush_commit_log_thorough_interval,
            queue_flush_every_ms=self.flush_interval_consume_queue,
            queue_flush_least_pages=self.flush_consume_queue_least_pages,
            queue_flush_thorough_every_ms=self.flush_consume_queue_thorough_interval,
            write_pool_buffers=self.transient_store_pool_size if self._has_write_pool else 0,
            commit_every_ms=self.commit_interval_commit_log,
            check_crc_on_recover=self.check_crc_on_recover,
            verify_record_crc=self.force_verify_prop_crc,
            index_safe=self.message_index_safe,
            max_filtered_entries=max(1, self.max_filter_message_size // 20),
            max_read_bytes_in_memory=self.max_transfer_bytes_on_message_in_memory,
            max_read_count_in_memory=self.max_transfer_count_on_message_in_memory,
            max_read_bytes_on_disk=self.max_transfer_bytes_on_message_in_disk,
            max_read_count_on_disk=self.max_transfer_count_on_message_in_disk,
            memory_percent=self.access_message_in_memory_max_ratio,
            keep_hours=self.file_reserved_time,
            delete_at_hours=self._delete_hours(),
            clean_every_ms=self.clean_resource_interval,
            delete_pause_ms=self.delete_commit_log_files_interval,
            delete_at_most=self.delete_file_batch_max,
            disk_clean_percent=self.disk_max_used_space_ratio,
            disk_force_percent=self.disk_space_clean_forcibly_ratio,
            disk_refuse_percent=self.disk_space_warning_level_ratio,
            clean_forcibly=self.clean_file_forcibly_enable,
        )


BrokerConfiguration = Configuration[Settings]

# Looked at once, when the broker starts. A change of these is saved and waits; any other counts at once.
AT_NEXT_START: Final = frozenset(
    {
        "namesrvAddr", "fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup", "brokerIP1", "brokerIP2",
        "enableSlaveActingMaster", "brokerHeartbeatInterval", "inSyncReplicas", "regionId", "traceOn", "traceTopicEnable", "msgTraceTopicName",
        "clusterTopicEnable", "brokerTopicEnable", "flushConsumerOffsetInterval", "flushDelayOffsetInterval",
        "serverChannelMaxIdleTimeSeconds", "serverSocketBacklog", "storeType", "maxMessageSize",
        "maxHashSlotNum", "maxIndexNum", "messageIndexEnable", "messageIndexSafe",
        "flushDiskType", "flushIntervalCommitLog", "flushCommitLogLeastPages", "flushCommitLogThoroughInterval",
        "flushIntervalConsumeQueue", "flushConsumeQueueLeastPages", "flushConsumeQueueThoroughInterval",
        "syncFlushTimeout", "transientStorePoolEnable", "transientStorePoolSize", "commitIntervalCommitLog",
        "warmMapedFileEnable", "checkCRCOnRecover", "enabledAppendPropCRC", "forceVerifyPropCRC", "enableLmq",
        "enableMultiDispatch", "maxLmqConsumeQueueNum", "maxFilterMessageSize", "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory", "maxTransferBytesOnMessageInDisk", "maxTransferCountOnMessageInDisk",
        "accessMessageInMemoryMaxRatio", "cleanResourceInterval", "metricsExporterType", "timerWheelEnable",
        "timerRollWindowSlot", "timerFlushIntervalMs",
    }
)  # fmt: skip


def load(path: Path | None, overrides: Mapping[str, str] | None = None) -> BrokerConfiguration:
    """Defaults, then the file, then `overrides` under Java's names. ConfigError names the file and the key."""
    # What a broker is, and what its store was written with, is not ours to guess.
    properties, adjusted = fit(Settings, read_properties_file(path) if path is not None else {}, NEVER_CHANGEABLE)
    properties |= overrides or {}
    settings, unknown, tls = read_settings(Settings, properties)
    inert = {**WITHOUT_EFFECT, **{key: value for key, value in unknown.items() if key in WITHOUT_EFFECT}}
    return Configuration(
        settings,
        file=path if path is not None else Path(settings.store_path_root_dir) / "config" / "broker.conf",
        unchangeable=NEVER_CHANGEABLE | {key.strip() for key in settings.config_black_list.split(";")},
        unknown={key: value for key, value in unknown.items() if key not in WITHOUT_EFFECT},
        without_effect=inert,
        tls=tls,
        secrets=ACCESS_SETTINGS,
        adjusted=[*adjusted, *strange_tls_keys(properties)],
    )
