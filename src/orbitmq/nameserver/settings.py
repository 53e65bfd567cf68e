"""The name server's settings, under Apache's names, from a properties file and changeable while it runs.

Keys of Java's thread pools and netty are accepted and shown, so files and tools carry over; here they have no effect.

Java: NamesrvConfig, NettyServerConfig, Configuration
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import BodyError, ConfigError
from orbitmq.nameserver.saved_file import save
from orbitmq.protocol.properties_text import format_properties, parse_properties
from orbitmq.transport.tls import ClientAuth, TlsMode, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whoever could change these could make the server write or read a file of their choice (CVE-2023-37582).
NEVER_CHANGEABLE: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})

_TLS_PREFIX: Final = "tls."


def _default_folder() -> Path:
    return Path.home() / "namesrv"


class Settings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
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
    enable_shutdown_gracefully: bool = False
    shutdown_wait_time_seconds: int = 30
    # Ours
    broker_silent_millis: int = msgspec.field(default=120_000, name="orbitmq.brokerSilentMillis")
    cluster_test_namesrv_addr: str = msgspec.field(default="", name="orbitmq.clusterTestNamesrvAddr")
    # Java's machinery: shown, without effect
    client_request_thread_pool_nums: int = 8
    client_request_thread_pool_queue_capacity: int = 50000
    default_thread_pool_nums: int = 16
    default_thread_pool_queue_capacity: int = 10000
    enable_controller_in_namesrv: bool = False
    server_async_semaphore_value: int = 64
    server_callback_executor_threads: int = 0
    server_netty_worker_group_enable: bool = True
    server_oneway_semaphore_value: int = 256
    server_pooled_byte_buf_allocator_enable: bool = True
    server_selector_threads: int = 3
    server_socket_rcv_buf_size: int = 0
    server_socket_snd_buf_size: int = 0
    server_worker_threads: int = 8
    use_epoll_native_selector: bool = False
    write_buffer_high_water_mark: int = 0
    write_buffer_low_water_mark: int = 0

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{_java_name(name)}={value} is out of range", hint=f"from {least} to {most}")
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
    ("wait_seconds_for_service", 0, 3600),
    ("shutdown_wait_time_seconds", 0, 3600),
    ("un_register_broker_queue_capacity", 1, 10_000_000),
)


class Configuration:
    """The settings in force, the keys of the file that we do not know, and where a change is saved."""

    def __init__(self, settings: Settings, unknown: Mapping[str, str] = {}, tls: TlsSettings | None = None) -> None:
        self.settings = settings
        self.unknown = dict(unknown)
        self.tls = tls or TlsSettings()
        self.generation = 0

    def as_properties(self) -> dict[str, str]:
        """Every setting in force, as text. TLS settings stay out: one of them is a password."""
        return {**self.unknown, **_texts(self.settings)}

    def changed(self, properties: Mapping[str, str]) -> Settings:
        """What the settings would be. ConfigError for a value that does not fit; unknown keys do not matter."""
        black_list = NEVER_CHANGEABLE | {key.strip() for key in self.settings.config_black_list.split(";")}
        forbidden = sorted(black_list & properties.keys())
        if forbidden:
            raise PermissionError(", ".join(forbidden))
        known = {key: value for key, value in properties.items() if key in KNOWN_KEYS}
        for key, value in known.items():
            if not value.isprintable():  # a line break would smuggle another key into the saved file
                raise ConfigError(f"{key} has a control character in its value")
        return _convert({**_texts(self.settings), **known})

    def apply(self, settings: Settings) -> None:
        self.settings = settings
        self.generation += 1

    def save(self, settings: Settings) -> None:
        save(Path(settings.config_store_path), format_properties({**self.unknown, **_texts(settings)}))


def load(path: Path | None, **overrides: str | int | None) -> Configuration:
    """Defaults, then the file, then the command line. ConfigError names the file and the key."""
    properties: dict[str, str] = {}
    if path is not None:
        properties = _read_file(path)
        properties["configStorePath"] = str(path)
    tls = _tls_settings({key: value for key, value in properties.items() if key.startswith(_TLS_PREFIX)})
    properties |= {_java_name(key): str(value) for key, value in overrides.items() if value is not None}
    unknown = {
        key: value for key, value in properties.items() if key not in KNOWN_KEYS and not key.startswith(_TLS_PREFIX)
    }
    known = {key: value for key, value in properties.items() if key in KNOWN_KEYS}
    return Configuration(_convert(known), unknown, tls)


def nearest_known(key: str) -> str | None:
    matches = difflib.get_close_matches(key, KNOWN_KEYS, n=1)
    return matches[0] if matches else None


def _read_file(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="-c takes a file of key=value lines") from None
    except (UnicodeDecodeError, BodyError) as error:
        raise ConfigError(f"{path} is not a properties file: {error}") from None


def _convert(properties: Mapping[str, str]) -> Settings:
    try:
        return msgspec.convert(dict(properties), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting has the wrong type: {error}") from None


def _texts(settings: Settings) -> dict[str, str]:
    values = msgspec.to_builtins(settings)
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}


def _tls_settings(properties: Mapping[str, str]) -> TlsSettings:
    def path(key: str) -> Path | None:
        return Path(properties[key]) if properties.get(key) else None

    try:
        mode = TlsMode(properties.get("tls.server.mode", TlsMode.PERMISSIVE))
        client_auth = ClientAuth(properties.get("tls.server.need.client.auth", ClientAuth.NONE))
    except ValueError as error:
        raise ConfigError(
            f"TLS: {error}", hint="modes: disabled, permissive, enforcing; client auth: none, optional, require"
        ) from None
    return TlsSettings(
        mode=mode,
        certificate=path("tls.server.certPath"),
        key=path("tls.server.keyPath"),
        key_password=properties.get("tls.server.keyPassword") or None,
        trusted=path("tls.server.trustCertPath"),
        client_auth=client_auth,
    )


def _java_name(name: str) -> str:
    return _JAVA_NAMES.get(name, name)


_JAVA_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Settings)}
KNOWN_KEYS: Final = frozenset(_JAVA_NAMES.values())
