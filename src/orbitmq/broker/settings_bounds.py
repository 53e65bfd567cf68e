"""What values the broker's settings may have: numbers a range, some texts a choice, others a form.

They are checked before a change from afar counts, so that none keeps the broker from starting again or from storing messages, and at
the start. A file that Apache's broker starts with shall start this one, so what is merely out of bounds in a file is brought into them.
`tests/broker/test_settings_bounds.py` goes through all settings: a new one needs bounds, too.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.broker import names
from orbitmq.configuration import fit_numbers
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.transport.address import parse_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_INT: Final = 2**31 - 1  # Java's largest
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_LONGEST_TEXT: Final = 255
NO_HOUR: Final = 24  # of deleteWhen: it never comes
_NUMBER: Final = re.compile(r"-?[0-9]+")
_ENOUGH_DIGITS: Final = 9  # to see that a number is no hour, and no precision
_PRECISIONS_MS: Final = (100, 200, 500, 1000)
_HOST: Final = re.compile(r"[A-Za-z0-9.:%_-]{0,255}")

# By the names of the fields; the least and the most that they may be.
RANGES: Final = (
    ("listen_port", 0, 65535),
    ("ha_listen_port", 0, 65535),
    ("broker_id", 0, 1 << 40),
    ("broker_permission", 0, 7),
    ("default_topic_queue_nums", 1, 65535),
    ("max_topic_length", 1, _INT),
    ("max_message_size", 1000, 512 << 20),
    ("start_accept_send_request_time_stamp", 0, 1 << 62),
    ("broker_heartbeat_interval", 10, _HOUR_MS),
    ("broker_not_active_timeout_millis", 100, _HOUR_MS),
    ("sync_broker_member_group_period", 10, _HOUR_MS),
    ("ha_send_heartbeat_interval", 1, _HOUR_MS),
    ("ha_housekeeping_interval", 1, _HOUR_MS),
    ("ha_transfer_batch_size", 1, 4 << 20),  # Java's slaves take pieces of up to 4 MB
    ("ha_max_gap_not_in_sync", 1, 1 << 62),
    ("max_ha_transfer_byte_in_second", 1, 1 << 40),
    ("in_sync_replicas", 1, 64),
    ("slave_timeout", 1, _HOUR_MS),
    ("short_polling_time_mills", 10, _HOUR_MS),
    ("register_name_server_period", 1, _DAY_MS),
    ("register_broker_timeout_mills", 1, _HOUR_MS),
    ("server_channel_max_idle_time_seconds", 1, 86_400),
    ("server_socket_backlog", 1, 65535),
    ("channel_expired_timeout", 1000, _DAY_MS),
    ("flush_consumer_offset_interval", 10, _HOUR_MS),
    ("flush_delay_offset_interval", 10, _HOUR_MS),
    ("send_thread_pool_queue_capacity", 1, _INT),
    ("wait_time_mills_in_send_queue", 1, _HOUR_MS),
    ("os_page_cache_busy_time_out_mills", 0, _HOUR_MS),
    ("sync_flush_timeout", 1, _HOUR_MS),
    ("compaction_schedule_internal", 10, _DAY_MS),
    ("max_error_rate_of_bloom_filter", 1, 99),
    ("expect_consumer_num_use_filter", 1, 27_000),  # at the least error rate their bits just fit beside a queue's entry
    ("filter_data_clean_time_span", 1, 1 << 62),
    ("timer_max_delay_sec", 1, 1 << 31),
    ("timer_roll_window_slot", 0, _INT),
    ("timer_flush_interval_ms", 10, _HOUR_MS),
    ("timer_congest_num_each_slot", 1, _INT),
    ("transaction_time_out", 0, _DAY_MS),
    ("transaction_check_interval", 10, _DAY_MS),
    ("transaction_check_max", 1, 1_000_000),
    ("max_msgs_num_batch", 1, 100_000),
    ("revive_queue_num", 1, 512),
    ("revive_interval", 10, _HOUR_MS),
    ("pop_from_retry_probability", 0, 100),
    ("pop_polling_size", 0, _INT),
    ("max_pop_polling_size", 0, _INT),
    ("pop_inflight_message_threshold", 0, _INT),
    ("default_pop_share_queue_num", -1, 65535),
    ("default_query_max_num", 1, 100_000),
    ("file_reserved_time", 1, 876_000),  # a hundred years
    ("clean_resource_interval", 10, _HOUR_MS),
    ("delete_file_batch_max", 1, 100_000),
    ("delete_commit_log_files_interval", 0, 60_000),
    ("disk_max_used_space_ratio", 1, 100),
    ("disk_space_clean_forcibly_ratio", 1, 100),
    ("disk_space_warning_level_ratio", 1, 100),
    ("consumer_offset_update_version_step", 1, 1 << 31),
    ("consumer_fallbehind_threshold", 1, 1 << 62),
    # Files: as long as Java's can be.
    ("mapped_file_size_commit_log", 1, _INT),
    ("mapped_file_size_consume_queue", 1, _INT),
    ("mapped_file_size_consume_queue_ext", 1, _INT),
    ("mapper_file_size_batch_consume_queue", 1, _INT),
    ("mapped_file_size_timer_log", 1, _INT),
    ("compaction_mapped_file_size", 1, _INT),
    ("compaction_cq_mapped_file_size", 1, _INT),
    ("max_hash_slot_num", 1, 50_000_000),
    ("max_index_num", 2, 50_000_000),
    ("max_lmq_consume_queue_num", 0, _INT),
    ("flush_interval_commit_log", 1, _HOUR_MS),
    ("flush_commit_log_least_pages", 0, 1 << 20),
    ("flush_commit_log_thorough_interval", 0, _DAY_MS),
    ("flush_interval_consume_queue", 1, _HOUR_MS),
    ("flush_consume_queue_least_pages", 0, 1 << 20),
    ("flush_consume_queue_thorough_interval", 0, _DAY_MS),
    ("transient_store_pool_size", 1, 32),  # each is as large as a file
    ("commit_interval_commit_log", 1, _HOUR_MS),
    ("max_filter_message_size", 1, 1 << 20),  # 20 bytes a message, all looked at in one go
    ("max_transfer_bytes_on_message_in_memory", 1, 15 << 20),  # an answer is one frame
    ("max_transfer_count_on_message_in_memory", 1, 100_000),
    ("max_transfer_bytes_on_message_in_disk", 1, 15 << 20),
    ("max_transfer_count_on_message_in_disk", 1, 100_000),
    ("access_message_in_memory_max_ratio", 0, 100),
    ("metrics_prom_exporter_port", 0, 65535),
    ("topics_created_per_minute", 0, 1 << 31),
    ("groups_created_per_minute", 0, 1 << 31),
)
CHOICES: Final[Mapping[str, tuple[object, ...]]] = {
    "flush_disk_type": ("ASYNC_FLUSH", "SYNC_FLUSH"),
    "broker_role": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    "store_type": ("default",),
    "metrics_exporter_type": ("DISABLE", "PROM"),
    "default_message_request_mode": ("PULL", "POP"),
    "timer_precision_ms": _PRECISIONS_MS,
}


def check_bounds(settings: msgspec.Struct) -> None:
    """ConfigError names the first setting that cannot be, and what it can."""
    java_names = {field.name: field.encode_name for field in msgspec.structs.fields(settings)}
    for name, least, most in RANGES:
        number = getattr(settings, name)
        if not least <= number <= most:
            raise ConfigError(f"{java_names[name]}={shown(number)} is out of range", hint=f"from {least} to {most}")
    for name, choices in CHOICES.items():
        choice = getattr(settings, name)
        if choice not in choices:
            raise ConfigError(
                f"{java_names[name]}={shown(choice)} cannot be", hint=f"one of {', '.join(map(str, choices))}"
            )
    for name, check in TEXTS.items():
        check(java_names[name], getattr(settings, name))


def fit(
    kind: type[msgspec.Struct], properties: Mapping[str, str], kept: frozenset[str]
) -> tuple[dict[str, str], list[str]]:
    """What a file says, brought into bounds except for the settings `kept`, and a sentence about each that was not."""
    fitted, adjusted = fit_numbers(kind, RANGES, properties, kept)
    _fit_precision(fitted, adjusted)
    given = fitted.get("deleteWhen", "")
    hours = ";".join(str(NO_HOUR) if _is_no_hour(part) else part for part in given.split(";"))
    if hours != given:
        fitted["deleteWhen"] = hours
        adjusted.append(
            f"deleteWhen={shown(given)} names hours that no day has: {shown(hours)} is used, and {NO_HOUR} never comes"
        )
    return fitted, adjusted


def _fit_precision(fitted: dict[str, str], adjusted: list[str]) -> None:
    """The wheel of such a file was written with what Apache's broker makes of it: MessageStoreConfig.setTimerPrecisionMs."""
    given = fitted.get("timerPrecisionMs", "")
    if _NUMBER.fullmatch(given) is None:
        return
    number = int(given[:_ENOUGH_DIGITS])
    used = max((known for known in _PRECISIONS_MS if known <= number), default=min(_PRECISIONS_MS))
    if used != number:
        fitted["timerPrecisionMs"] = str(used)
        adjusted.append(f"timerPrecisionMs={shown(given)} is none of {_PRECISIONS_MS}: {used} is used")


def _is_no_hour(part: str) -> bool:
    """What is no number is passed over."""
    number = part.strip()
    return _NUMBER.fullmatch(number) is not None and not 0 <= int(number[:_ENOUGH_DIGITS]) <= NO_HOUR


def shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _check_addresses(key: str, text: str) -> None:
    try:
        parse_addresses(text)
    except ConfigError as error:
        raise ConfigError(f"{key}={shown(text)} cannot be: {error.message}", hint=error.hint) from None


def _check_hours(key: str, text: str) -> None:
    if any(map(_is_no_hour, text.split(";"))):
        raise ConfigError(
            f"{key}={shown(text)} cannot be", hint="hours of a day, 0 to 23, parted by semicolons; 24 never comes"
        )


def _check_ip(key: str, text: str) -> None:
    try:
        if text:
            ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(
            f"{key}={shown(text)} is not an IP address", hint="it stands in every message id; write 10.0.0.7"
        ) from None


def _check_host(key: str, text: str) -> None:
    if _HOST.fullmatch(text) is None:
        raise ConfigError(f"{key}={shown(text)!r} is no machine", hint="an IP address, or a name")


def _check_short(key: str, text: str) -> None:
    """It goes into every message, whose properties have an end."""
    if len(text) > _LONGEST_TEXT or not text.isprintable():
        raise ConfigError(
            f"{key}={shown(text)!r} cannot be", hint=f"at most {_LONGEST_TEXT} characters, none of them a control"
        )


def _check_topic(key: str, text: str) -> None:
    try:
        names.check_topic_name(text)
    except RequestFailed as refusal:
        raise ConfigError(f"{key}={shown(text)} cannot be: {refusal.message}") from None


# Texts that can be changed from afar and are no choice among some; messageDelayLevel is read by `Settings.delay_levels_ms`.
TEXTS: Final[Mapping[str, Callable[[str, str], None]]] = {
    "namesrv_addr": _check_addresses,
    "broker_ip1": _check_ip,
    "broker_ip2": _check_host,
    "region_id": _check_short,
    "delete_when": _check_hours,
    "msg_trace_topic_name": _check_topic,
}
