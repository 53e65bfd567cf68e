"""The gate of RocketMQ 4.x: accounts and permissions from access files, looked at again when the files change.

In this order: an address on the white list passes; an unknown account does not; an account from its own white address passes; the
signature must be right; an admin passes; everyone else needs a permission for each topic and group the request touches. What
changes topics, groups or the broker itself needs an admin. Messages of traces are taken from every account.

Code (1) and texts of refusals are Apache 4.x's.

Java: PlainPermissionManager.validate, PlainPermissionChecker
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.access.gate import charge, tell_refusal
from orbitmq.access.needs import Action, Kind
from orbitmq.access.plain_file import Permission, access_files, read_access_files
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.signing import ACCESS_KEY, SIGNATURE, SigningKey, signature

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.access.needs import Need, NeedsOf
    from orbitmq.access.plain_file import Account, PlainAccess
    from orbitmq.clock import Clock
    from orbitmq.protocol.command import Command
    from orbitmq.transport.rates import Rates

logger = logging.getLogger(__name__)

_LOOK_AGAIN_MS: Final = 500
_LOOKS: Final = frozenset({Action.GET, Action.LIST})
_TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class PlainGate:
    def __init__(self, main_file: Path, cluster: str, clock: Clock, rates: Rates | None = None) -> None:
        """ConfigError if the files cannot be read; later, what cannot be read leaves in force what was."""
        self.rates = rates
        self._main_file = main_file
        self._cluster = cluster
        self._clock = clock
        self._generation = 0
        self._looked_ms = clock.now_ms()
        self._seen = self._times()
        if not self._seen:
            raise ConfigError(
                f"aclEnable=true, and there is no {main_file}", hint="write it, or set rocketmqHome to where conf/ is"
            )
        self._access = read_access_files(list(self._seen))

    def check(self, request: Command, source: str, needs_of: NeedsOf) -> None:
        self._look_again()
        if any(pattern.matches(source) for pattern in self._access.white_addresses):
            return
        try:
            account = self._account(request)
            if account.from_anywhere_in.matches(source):
                return
            self._check_signature(account, request)
            if not account.is_admin:
                for need in needs_of(request, self._cluster):
                    _check_need(account, need, request.code)
        except RequestFailed as refusal:
            tell_refusal(request, source, refusal.message)
            raise
        charge(self.rates, account.access_key, request)

    @property
    def generation(self) -> int:
        self._look_again()
        return self._generation

    def key_of(self, code: int, access_key: str, need: Need, source: str) -> SigningKey | None:
        account = self._access.accounts.get(access_key)
        if account is None or account.from_anywhere_in.matches(source):
            return None
        if any(pattern.matches(source) for pattern in self._access.white_addresses):
            return None
        return _key(account, need, code)

    def key_for_proof(self, code: int, access_key: str, need: Need, _source: str) -> SigningKey | None:
        self._look_again()
        account = self._access.accounts.get(access_key)
        return None if account is None else _key(account, need, code)

    def allows(self, code: int, access_key: str, need: Need, source: str) -> bool:
        self._look_again()
        if any(pattern.matches(source) for pattern in self._access.white_addresses):
            return True
        account = self._access.accounts.get(access_key)
        if account is None:
            return False
        return account.from_anywhere_in.matches(source) or _key(account, need, code) is not None

    def _account(self, request: Command) -> Account:
        access_key = request.fields.get(ACCESS_KEY, "")
        if not access_key:
            raise _refusal("No accessKey is configured")
        account = self._access.accounts.get(access_key)
        if account is None:
            raise _refusal(f"No acl config for {access_key}")
        return account

    @staticmethod
    def _check_signature(account: Account, request: Command) -> None:
        sent = request.fields.get(SIGNATURE, "").encode()
        # 4.x leaves the field out whoever asks, newer clients leave it in.
        wanted = (
            signature(request.fields, request.body, account.secret_key, leave_out)
            for leave_out in ((), (_UNIQUE_KEY_QUERY,))
        )
        if not any(hmac.compare_digest(each.encode(), sent) for each in wanted):
            raise _refusal(f"Check signature failed for accessKey={account.access_key}")

    @property
    def main_file(self) -> Path:
        return self._main_file

    @property
    def access(self) -> PlainAccess:
        """What the files say, as far as they could be read."""
        return self._access

    def look_again(self) -> None:
        """At once: a file has just been changed here."""
        self._looked_ms = 0
        self._look_again()

    def _look_again(self) -> None:
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._looked_ms < _LOOK_AGAIN_MS:
            return
        self._looked_ms = now_ms
        try:
            seen = self._times()
            if seen == self._seen:
                return
            self._seen = seen
            self._access = read_access_files(list(seen))
            self._generation += 1
        except ConfigError as error:
            logger.error("the access files changed and are not used, those before stay in force: %s", error)
        else:
            logger.info("read the access files again: %d accounts", len(self._access.accounts))

    def _times(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for path in access_files(self._main_file):
            try:
                status = path.stat()
            except OSError as error:  # gone just now, or a link that leads nowhere
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
            found[path] = (status.st_mtime_ns, status.st_size)
        return found


def _key(account: Account, need: Need, code: int) -> SigningKey | None:
    if not account.is_admin:
        try:
            _check_need(account, need, code)
        except RequestFailed:
            return None
    return SigningKey(account.secret_key)


def _check_need(account: Account, need: Need, code: int) -> None:
    actions = set(need.actions)
    if need.kind is Kind.TOPIC and need.name == _TRACES and Action.PUB in actions:
        return
    if actions <= _LOOKS:
        return
    wanted = Permission.NONE
    if Action.PUB in actions:
        wanted |= Permission.PUB
    if Action.SUB in actions:
        wanted |= Permission.SUB
    if need.kind is Kind.CLUSTER or not wanted:
        raise _refusal(f"Need admin permission for request code={code}, but accessKey={account.access_key} is not")
    named = account.topics if need.kind is Kind.TOPIC else account.groups
    default = account.default_topic if need.kind is Kind.TOPIC else account.default_group
    granted = named.get(need.name, default)
    if granted & Permission.DENY or not granted & wanted:
        raise _refusal(f"No default permission for {need}" if need.name not in named else f"No permission for {need}")


def _refusal(message: str) -> RequestFailed:
    return RequestFailed(ResponseCode.SYSTEM_ERROR, f"org.apache.rocketmq.acl.common.AclException: {message}")
