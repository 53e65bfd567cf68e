"""The settings of access control, under Apache's names; part of the broker's and of the name server's. Java: AuthConfig"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.access.addresses import AddressPattern
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.access import ENABLED, SUPER, User
from orbitmq.protocol.signing import Credentials
from orbitmq.transport.load_limits import LoadLimits
from orbitmq.transport.preamble import TRUSTED_PROXIES


class _InnerClient(msgspec.Struct):
    accessKey: str  # noqa: N815 - Java's name
    secretKey: str  # noqa: N815


class AccessSettings(LoadLimits, rename="camel", kw_only=True, frozen=True):
    authentication_enabled: bool = False
    authorization_enabled: bool = False
    authentication_whitelist: str = ""  # request codes, parted by commas
    authorization_whitelist: str = ""
    init_authentication_user: str = ""  # {"username": ..., "password": ...}: made a super user if there is none such
    inner_client_authentication_credentials: str = (
        ""  # {"accessKey": ..., "secretKey": ...}: what we sign our own requests with
    )
    auth_config_path: str = ""
    trusted_proxies: str = msgspec.field(default="", name=TRUSTED_PROXIES)  # parted by semicolons; see proxies.py
    migrate_auth_from_v1_enabled: bool = False  # accounts of 4.x access files become users at the start
    # There is one of each here, so what these name does not matter.
    authentication_provider: str = ""
    authentication_metadata_provider: str = ""
    authorization_provider: str = ""
    authorization_metadata_provider: str = ""

    @property
    def is_guarded(self) -> bool:
        return self.authentication_enabled or self.authorization_enabled

    def codes_without_authentication(self) -> frozenset[int]:
        return _codes("authenticationWhitelist", self.authentication_whitelist)

    def codes_without_authorization(self) -> frozenset[int]:
        return _codes("authorizationWhitelist", self.authorization_whitelist)

    def proxies(self) -> tuple[AddressPattern, ...]:
        """Those that are named."""
        try:
            return tuple(AddressPattern(part) for part in self.trusted_proxies.split(";") if part.strip())
        except ConfigError as error:
            raise ConfigError(
                f"{TRUSTED_PROXIES}={self.trusted_proxies} cannot be: {error.message}",
                hint="addresses or networks, parted by semicolons, such as 10.0.0.7;192.168.1.0/24",
            ) from None

    def first_user(self) -> User | None:
        if not self.init_authentication_user:
            return None
        try:
            user = msgspec.json.decode(self.init_authentication_user, type=User)
        except msgspec.MsgspecError:
            user = User()
        if not user.username or not user.password:
            raise ConfigError(
                "initAuthenticationUser cannot be read", hint='write it as {"username":"admin","password":"..."}'
            )
        return msgspec.structs.replace(user, user_type=SUPER, user_status=ENABLED)

    def own_credentials(self) -> Credentials | None:
        """What this server signs its requests to other servers with."""
        if not self.inner_client_authentication_credentials:
            return None
        try:
            inner = msgspec.json.decode(self.inner_client_authentication_credentials, type=_InnerClient)
        except msgspec.MsgspecError:
            raise ConfigError(
                "innerClientAuthenticationCredentials cannot be read",
                hint='write it as {"accessKey":"...","secretKey":"..."}',
            ) from None
        return Credentials(inner.accessKey, inner.secretKey)

    def check_access(self) -> None:
        """ConfigError for what cannot be used."""
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true without authenticationEnabled=true: anyone could say to be anyone",
                hint="set both",
            )
        self.codes_without_authentication()
        self.codes_without_authorization()
        self.proxies()
        self.first_user()
        self.own_credentials()


# Never shown to anyone (passwords are among them), nor changed from afar: whoever could might open the door.
ACCESS_SETTINGS: Final = frozenset(AccessSettings.__struct_encode_fields__) - frozenset(
    LoadLimits.__struct_encode_fields__
)


def _codes(name: str, text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{name}={text} cannot be", hint="request codes, parted by commas") from None
