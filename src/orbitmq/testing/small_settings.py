"""What servers for tests are set to: loopback, free ports, small files.

A test that pushes the clock forward by hours must not make clients look dead: they are given a day. For the same reason the name
server of a test, which uses a clock for nothing but that, goes by real time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import settings as broker_settings
from orbitmq.errors import ConfigError
from orbitmq.nameserver import settings as nameserver_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SEGMENT_BYTES: Final = 16 << 20
_TIMER_LOG_BYTES: Final = 1 << 20
_MINUTE_MS: Final = 60 * 1000
_DAY_MS: Final = 86_400_000


def name_server_configuration(folder: Path) -> nameserver_settings.NameServerConfiguration:
    return nameserver_settings.load(
        None,
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
    )


def broker_configuration(store: Path, settings: Mapping[str, str]) -> broker_settings.BrokerConfiguration:
    """`settings` win, under Apache's names. ConfigError for one that is misspelt: a test that ran without it would prove nothing."""
    configuration = broker_settings.load(
        None,
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "brokerName": "test",
            "storePathRootDir": str(store),
            "mappedFileSizeCommitLog": str(_SEGMENT_BYTES),
            "mappedFileSizeTimerLog": str(_TIMER_LOG_BYTES),
            "waitTimeMillsInSendQueue": str(_MINUTE_MS),  # a busy machine is no reason to refuse a message
            "channelExpiredTimeout": str(_DAY_MS),
            **settings,
        },
    )
    for complaint in (*configuration.unknown_told("broker"), *configuration.adjusted):
        raise ConfigError(complaint, hint="`orbitmq broker --explain '*'` shows all that there are")
    return configuration
