"""The name server's settings, under Apache's names, from a properties file and changeable while it runs.

Keys of Java's thread pools and netty are accepted and shown, so files and tools carry over; here they have no effect.

Java: NamesrvConfig, NettyServerConfig
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.access.settings import ACCESS_SETTINGS, AccessSettings
from orbitmq.configuration import Configuration, fit_numbers, read_properties_file, read_settings, strange_tls_keys
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.registration import MAX_INFLATED_BYTES
from orbitmq.transport.address import parse_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whoever could change these could make the server write or read a file of their choice (CVE-2023-37582), or not start again: an
# address may be another machine's, a port taken.
NEVER_CHANGEABLE: Final = frozenset(
    {
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "listenPort",
        "bindAddress",
        "metricsPromExporterPort",
        "metricsPromExporterHost",
    }
)


def _default_folder() -> Path:
    return Path.home() / "namesrv"


class Settings(AccessSettings, rename="camel", kw_only=True, frozen=True):
    # Where things are
    bind_address: str = "0.0.0.0"  # noqa: S104 - Apache's default; brokers come from other machines
    listen_port: int = 9876
    rocketmq_home: str = msgspec.field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    kv_config_path: str = msgspec.field(default_factory=lambda: str(_default_folder() / "kvConfig.json"))
    config_store_path: str = msgspec.field(default_factory=lambda: str(_default_folder() / "namesrv.properties"))
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    # Routes
    scan_not_active_broker_interval: int = 5000  # ms
    delete_topic_with_broker_registration: bool = False
    un_register_broker_queue_capacity: int = 3000
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = 45
    cluster_test: bool = False
    product_env_name: str = "center"
    # Connections
    server_channel_max_idle_time_seconds: int = 120
    server_socket_backlog: int = 1024
    # Ours
    broker_silent_millis: int = msgspec.field(default=120_000, name="orbitmq.brokerSilentMillis")
    max_decompressed_bytes: int = msgspec.field(default=MAX_INFLATED_BYTES, name="orbitmq.maxDecompressedBytes")
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_port: int = 5558
    metrics_prom_exporter_host: str = ""
    cluster_test_namesrv_addr: str = msgspec.field(default="", name="orbitmq.clusterTestNamesrvAddr")
    # Java's machinery: shown, without effect
    client_request_thread_pool_nums: int = 8
    client_request_thread_pool_queue_capacity: int = 50000
    default_thread_pool_nums: int = 16
    default_thread_pool_queue_capacity: int = 10000
    enable_controller_in_namesrv: bool = False
    enable_shutdown_gracefully: bool = False  # stopping always answers what was asked
    server_async_semaphore_value: int = 64
    server_callback_executor_threads: int = 0
    server_netty_worker_group_enable: bool = True
    server_oneway_semaphore_value: int = 256
    server_pooled_byte_buf_allocator_enable: bool = True
    server_selector_threads: int = 3
    server_socket_rcv_buf_size: int = 0
    server_socket_snd_buf_size: int = 0
    server_worker_threads: int = 8
    shutdown_wait_time_seconds: int = 30
    use_epoll_native_selector: bool = False
    write_buffer_high_water_mark: int = 0
    write_buffer_low_water_mark: int = 0

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{_JAVA_NAMES[name]}={value} is out of range", hint=f"from {least} to {most}")
        if self.metrics_exporter_type not in ("DISABLE", "PROM"):
            raise ConfigError(f"metricsExporterType={self.metrics_exporter_type} cannot be", hint="DISABLE or PROM")
        parse_addresses(self.cluster_test_namesrv_addr)
        self.check_access()
        if self.enable_controller_in_namesrv:
            raise ConfigError(
                "enableControllerInNamesrv=true: this name server has no controller",
                hint="leave it false; run replication without a controller",
            )


_RANGES: Final = (
    ("listen_port", 0, 65535),
    ("scan_not_active_broker_interval", 10, 3_600_000),
    ("broker_silent_millis", 100, 86_400_000),
    ("server_channel_max_idle_time_seconds", 1, 86_400),
    ("server_socket_backlog", 1, 65535),
    ("max_decompressed_bytes", 1 << 20, 1 << 30),
    ("metrics_prom_exporter_port", 0, 65535),
    ("wait_seconds_for_service", 0, 3600),
    ("un_register_broker_queue_capacity", 1, 10_000_000),
)


NameServerConfiguration = Configuration[Settings]

_JAVA_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Settings)}


def load(
    path: Path | None, *, properties_given: Mapping[str, str] | None = None, **overrides: str | int | None
) -> NameServerConfiguration:
    """Defaults, then the file, then what is given under Apache's names or ours. ConfigError names the file and the key."""
    properties: dict[str, str] = {}
    adjusted: list[str] = []
    if path is not None:
        properties, adjusted = fit_numbers(Settings, _RANGES, read_properties_file(path), NEVER_CHANGEABLE)
        properties["configStorePath"] = str(path)
    properties |= properties_given or {}
    properties |= {_JAVA_NAMES[key]: str(value) for key, value in overrides.items() if value is not None}
    settings, unknown, tls = read_settings(Settings, properties)
    black_list = {key.strip() for key in settings.config_black_list.split(";")}
    return Configuration(
        settings,
        file=Path(settings.config_store_path),
        unchangeable=NEVER_CHANGEABLE | black_list,
        unknown=unknown,
        tls=tls,
        secrets=ACCESS_SETTINGS,
        adjusted=[*adjusted, *strange_tls_keys(properties)],
    )
