"""Settings under Apache's names: from a properties file, shown to tools, and changed while a server runs.

A server declares its settings as one frozen msgspec struct; this module reads, checks, shows and saves them.

Java: Configuration, MixAll.properties2Object
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from orbitmq.errors import BodyError, ConfigError, ForbiddenSetting, RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.properties_text import parse_properties, properties_file
from orbitmq.saved_file import save
from orbitmq.settings_reference import read_explanations
from orbitmq.transport.tls import ClientAuth, ClientTlsSettings, TlsMode, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

_TLS_PREFIX: Final = "tls."
_OUR_PREFIX: Final = "orbitmq."
_NUMBER: Final = re.compile(r"-?[0-9]{1,30}")

# Both servers have them, in the same file; never shown to anyone, nor changed from afar.
TLS_EXPLAINED: Final = read_explanations("""
# TLS
tls.server.mode | | disabled turns TLS away, permissive serves both, enforcing turns plain traffic away | permissive
tls.server.certPath | | the certificate, PEM, with its chain; without one there is no TLS. A changed file counts at once |
tls.server.keyPath | | the key of tls.server.certPath, PEM |
tls.server.keyPassword | | of tls.server.keyPath, if it has one |
tls.server.trustCertPath | | whose client certificates are trusted, PEM |
tls.server.need.client.auth | | client certificates: none, optional or require | none
tls.enable | | this server speaks TLS to other servers: a broker to name servers, a slave to its master | false
tls.client.certPath | | the certificate that this server shows to other servers, PEM |
tls.client.keyPath | | the key of tls.client.certPath, PEM |
tls.client.keyPassword | | of tls.client.keyPath, if it has one |
tls.client.trustCertPath | | whose certificates this server trusts in other servers, PEM |
""")


class Configuration(Generic[S]):
    """The settings in force, keys of the file that we do not know, and where a change is saved."""

    def __init__(
        self,
        settings: S,
        *,
        file: Path,
        unchangeable: frozenset[str] = frozenset(),
        unknown: Mapping[str, str] | None = None,
        without_effect: Mapping[str, str] | None = None,
        tls: TlsSettings | None = None,
        secrets: frozenset[str] = frozenset(),
        adjusted: Sequence[str] = (),
    ) -> None:
        """`without_effect`: settings of Apache's that mean nothing here but are shown as they were given; `adjusted`: what of the file
        is not used as it stands there, in sentences for the log."""
        self.settings = settings
        self.file = file
        self.unknown = dict(unknown or {})
        self.without_effect = dict(without_effect or {})
        self.tls = tls or TlsSettings()
        self.adjusted = tuple(adjusted)
        self.generation = 0
        self.when_changed: list[Callable[[], None]] = []  # called after each change
        self.changing = asyncio.Lock()  # held from `changed` to `apply`, or one of two changes would be lost
        self._unchangeable = unchangeable | secrets
        self._secrets = secrets

    @property
    def known_keys(self) -> frozenset[str]:
        return known_keys(type(self.settings))

    def as_properties(self) -> dict[str, str]:
        """Every setting in force, as text. TLS settings and secrets stay out: passwords are among them."""
        shown = {**self.without_effect, **self.unknown, **texts(self.settings)}
        return {key: value for key, value in shown.items() if key not in self._secrets}

    def changed(self, properties: Mapping[str, str]) -> tuple[S, dict[str, str]]:
        """What the settings would be, and those without effect. ConfigError for a value that does not fit.

        Unknown keys do not matter.
        """
        forbidden = sorted(self._unchangeable & properties.keys())
        if forbidden:
            raise ForbiddenSetting(f"{', '.join(forbidden)} cannot be changed while the server runs")
        known = {key: value for key, value in properties.items() if key in self.known_keys}
        inert = {key: value for key, value in properties.items() if key in self.without_effect}
        for key, value in {**known, **inert}.items():
            if not value.isprintable():  # a line break would smuggle another key into the saved file
                raise ConfigError(f"{key} has a control character in its value")
        return _convert(type(self.settings), {**texts(self.settings), **known}), {**self.without_effect, **inert}

    def apply(self, settings: S, without_effect: dict[str, str]) -> None:
        self.settings = settings
        self.without_effect = without_effect
        self.generation += 1
        for listener in self.when_changed:
            listener()

    def save(self, settings: S, without_effect: Mapping[str, str]) -> None:
        """OSError when it cannot be. What the file says about TLS stays in it, unseen by `as_properties` as it is."""
        about_tls = {}
        if self.file.exists():
            read = read_properties_file(self.file)
            about_tls = {key: value for key, value in read.items() if key.startswith(_TLS_PREFIX)}
        written = texts(settings)
        holds_secrets = any(written[key] not in ("", "false") for key in self._secrets)
        content = properties_file({**about_tls, **without_effect, **self.unknown, **written})
        save(self.file, content, private=holds_secrets or bool(about_tls))

    def unknown_told(self, server: str) -> list[str]:
        """A sentence about each key that no such server knows."""
        return [f"{key} is no setting of a {server}{_meant(key, self.known_keys)}" for key in self.unknown]


async def change(configuration: Configuration[S], body: bytes, asker: str) -> frozenset[str]:
    """Take an update request's body: all of it or nothing. Every value is checked before any counts, and it counts once saved.

    Answers with the settings it named; RequestFailed says why it could not be.
    """
    try:
        properties = parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise BodyError(f"settings are not UTF-8: {error}") from None
    if not properties:
        return frozenset()
    async with configuration.changing:
        try:
            settings, inert = configuration.changed(properties)
            await asyncio.to_thread(configuration.save, settings, inert)
        except ForbiddenSetting as error:
            logger.warning("refused %s: %s", asker, error)
            raise RequestFailed(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from None
        except ConfigError as error:
            logger.warning("refused %s: %s", asker, error)
            raise RequestFailed(ResponseCode.INVALID_PARAMETER, str(error)) from None
        except OSError as error:
            logger.error("cannot save %s: %s", configuration.file, error.strerror)
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"cannot save {configuration.file}: {error.strerror}; nothing was changed",
                hint="make room, or make the folder writable",
            ) from None
        configuration.apply(settings, inert)
    changed = properties.keys() & (configuration.known_keys | inert.keys())
    unknown = len(properties) - len(changed)
    logger.info(
        "%s changed %s%s",
        asker,
        ", ".join(sorted(changed)) or "nothing",
        f", and named {unknown} keys that are no settings" if unknown else "",
    )
    return frozenset(changed)


def read_properties_file(path: Path) -> dict[str, str]:
    """ConfigError names the file and what is wrong with it."""
    try:
        return parse_properties(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="-c takes a file of key=value lines") from None
    except (UnicodeDecodeError, BodyError) as error:
        raise ConfigError(f"{path} is not a properties file: {error}") from None


def read_settings(kind: type[S], properties: Mapping[str, str]) -> tuple[S, dict[str, str], TlsSettings]:
    """The settings, the keys that are none, and what the `tls.` keys say."""
    known = {key: value for key, value in properties.items() if key in known_keys(kind)}
    tls = {key: value for key, value in properties.items() if key.startswith(_TLS_PREFIX)}
    unknown = {key: value for key, value in properties.items() if key not in known and key not in tls}
    return _convert(kind, known), unknown, _tls_settings(tls)


def fit_numbers(
    kind: type[msgspec.Struct],
    ranges: Iterable[tuple[str, int, int]],
    properties: Mapping[str, str],
    kept: frozenset[str],
) -> tuple[dict[str, str], list[str]]:
    """What a file says with its numbers brought into their ranges, and a sentence about each that was not in its own.

    Apache's servers take any number, and a file that they start with shall do here. Left as they are: those `kept`, and our own settings.
    """
    java_names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    fitted = dict(properties)
    adjusted: list[str] = []
    for name, least, most in ranges:
        key = java_names[name]
        given = properties.get(key, "")
        if key in kept or key.startswith(_OUR_PREFIX) or _NUMBER.fullmatch(given) is None:
            continue
        used = min(max(int(given), least), most)
        if used != int(given):
            fitted[key] = str(used)
            adjusted.append(f"{key}={given} is out of range, from {least} to {most}: {used} is used")
    return fitted, adjusted


def strange_tls_keys(properties: Mapping[str, str]) -> list[str]:
    """A sentence about each `tls.` key that is none: misspelt, it would leave a server open in silence. Apart from other unknown keys,
    because those are shown with their values to whoever asks, and this may be a password's.
    """
    strange = (key for key in properties if key.startswith(_TLS_PREFIX) and key not in TLS_EXPLAINED)
    return [f"{key} is no TLS setting, and counts for nothing{_meant(key, TLS_EXPLAINED)}" for key in strange]


def _meant(key: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def known_keys(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


def texts(settings: msgspec.Struct) -> dict[str, str]:
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}


def _convert(kind: type[S], properties: Mapping[str, str]) -> S:
    try:
        return msgspec.convert(dict(properties), kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`")
        if not key:
            raise ConfigError(str(error)) from None
        raise ConfigError(f"{key}={properties[key][:300]} cannot be: {what[0].lower()}{what[1:]}") from None


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
        outgoing=ClientTlsSettings(
            enabled=properties.get("tls.enable", "").lower() == "true",
            certificate=path("tls.client.certPath"),
            key=path("tls.client.keyPath"),
            key_password=properties.get("tls.client.keyPassword") or None,
            trusted=path("tls.client.trustCertPath"),
        ),
    )
