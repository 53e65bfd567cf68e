"""The gate: every request passes it before its handler sees it, or is refused.

    known sender    the request names a user and is signed with that user's password
    allowed         every resource it needs is granted by the user's policies; super users may do everything

Texts and code (16) of refusals are Apache 5.x's, because people search for them.

Java: AuthenticationPipeline, AuthorizationPipeline, DefaultAuthenticationHandler, AclAuthorizationHandler
"""

from __future__ import annotations

import hmac
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from orbitmq.access.policies import decide
from orbitmq.errors import ConfigError, HiddenRefusal, RequestFailed
from orbitmq.protocol.bodies.access import DISABLED
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.signing import ACCESS_KEY, SIGNATURE, SigningKey, signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.access.needs import Need, NeedsOf
    from orbitmq.access.policies import Entry
    from orbitmq.access.settings import AccessSettings
    from orbitmq.access.users import Users
    from orbitmq.protocol.bodies.access import User
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection, Handler, Routes
    from orbitmq.transport.rates import Rates

audit: Final = logging.getLogger("orbitmq.audit")

# What says what an operator touched; never a value, which may be a secret.
_TELLING_FIELDS: Final = frozenset(
    {
        "topic",
        "group",
        "groupName",
        "consumerGroup",
        "namespace",
        "key",
        "brokerName",
        "clusterName",
        "srcGroup",
        "destGroup",
    }
)
# Clients up to this version sign without a field that they send all the same.
_LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class Door(Protocol):
    """What requests pass: this module's gate, or that of 4.x (plain_gate.py)."""

    rates: Rates | None  # how much each user may ask

    def check(self, request: Command, source: str, needs_of: NeedsOf) -> None:
        """RequestFailed says who was refused what."""
        ...

    @property
    def generation(self) -> int:
        """Another one whenever an answer of `key_of` may have become wrong."""
        ...

    def key_of(self, code: int, access_key: str, need: Need, source: str) -> SigningKey | None:
        """What this user signs requests with, if they may do this from there; None: `check` has to decide."""
        ...

    def key_for_proof(self, code: int, access_key: str, need: Need, source: str) -> SigningKey | None:
        """The same for who proves itself besides requests, where nobody passes unasked; None: they may not."""
        ...

    def allows(self, code: int, access_key: str, need: Need, source: str) -> bool:
        """Whether who was let in with such a request may do this, too: it became known only afterwards what it is about."""
        ...


class Gate:
    def __init__(self, users: Users, settings: AccessSettings, cluster: str, rates: Rates | None = None) -> None:
        self.rates = rates
        self._users = users
        self._settings = settings
        self._cluster = cluster
        self._unsigned = settings.codes_without_authentication()
        self._ungranted = settings.codes_without_authorization()

    def check(self, request: Command, source: str, needs_of: NeedsOf) -> None:
        """RequestFailed says who was refused what."""
        try:
            user = None
            if self._settings.authentication_enabled and request.code not in self._unsigned:
                user = self._authenticate(request)
            if self._settings.authorization_enabled and request.code not in self._ungranted:
                user = user or self._named(request)
                if not user.is_super:
                    for need in needs_of(request, self._cluster):
                        self._authorize(user, need, source)
        except RequestFailed as refusal:
            tell_refusal(request, source, refusal.message)
            raise
        if user is not None:
            charge(self.rates, user.username, request)

    @property
    def generation(self) -> int:
        return self._users.generation

    def key_of(self, code: int, access_key: str, need: Need, source: str) -> SigningKey | None:
        if code in self._unsigned or code in self._ungranted or not self._settings.authentication_enabled:
            return None
        return self.key_for_proof(code, access_key, need, source)

    def key_for_proof(self, _code: int, access_key: str, need: Need, source: str) -> SigningKey | None:
        user = self._users.get(access_key)
        if user is None or user.user_status == DISABLED:
            return None
        if self._settings.authorization_enabled and not user.is_super:
            entry = self._deciding(user, need, source)
            if entry is None or not entry.allows:
                return None
        return SigningKey(user.password or "")

    def allows(self, code: int, access_key: str, need: Need, source: str) -> bool:
        if not self._settings.authorization_enabled or code in self._ungranted:
            return True
        user = self._users.get(access_key)
        if user is None or user.user_status == DISABLED:
            return False
        entry = None if user.is_super else self._deciding(user, need, source)
        return user.is_super or (entry is not None and entry.allows)

    def _authenticate(self, request: Command) -> User:
        user = self._named(request)
        leave_out = (_UNIQUE_KEY_QUERY,) if request.version <= _LAST_WITHOUT_UNIQUE_KEY_QUERY else ()
        wanted = signature(request.fields, request.body, user.password or "", leave_out)
        if not hmac.compare_digest(wanted.encode(), request.fields.get(SIGNATURE, "").encode()):
            raise _refusal("check signature failed.")
        return user

    def _named(self, request: Command) -> User:
        username = request.fields.get(ACCESS_KEY, "")
        if not username.strip():
            raise _refusal("username cannot be null.")
        user = self._users.get(username)
        if user is None:
            raise _refusal(f"User:{username} is not found.")
        if user.user_status == DISABLED:
            raise _refusal(f"User:{username} is disabled.")
        return user

    def _authorize(self, user: User, need: Need, source: str) -> None:
        entry = self._deciding(user, need, source)
        if entry is None or not entry.allows:
            why = "no matched policies." if entry is None else "the decision is deny."
            raise _refusal(f"User:{user.username} has no permission to access {need} from {source}, {why}")

    def _deciding(self, user: User, need: Need, source: str) -> Entry | None:
        custom, default = self._users.entries(user.username)
        return decide(custom, need, source) or decide(default, need, source)


def guarded(
    routes: Mapping[int, Handler], needs: Mapping[int, NeedsOf], gate: Door | None, audited: frozenset[int]
) -> Routes:
    """The routes behind the gate, `audited` ones with a line in the audit log, gate or not.

    A code without declared needs is refused at the start.
    """
    undeclared = sorted(routes.keys() - needs.keys())
    if undeclared:
        raise ConfigError(
            f"nobody has said what requests of codes {undeclared} need", hint="declare it in permissions.py"
        )
    noted = {code: partial(_noted, handler) for code, handler in routes.items() if code in audited}
    if gate is None:
        return {**routes, **noted}
    watched = {code: partial(_watched, handler) for code, handler in routes.items() if code not in audited}
    return {code: partial(_ask_first, gate, needs[code], handler) for code, handler in {**watched, **noted}.items()}


async def _ask_first(
    gate: Door, needs_of: NeedsOf, handler: Handler, request: Command, connection: Connection
) -> Command | None:
    gate.check(request, connection.peer[0], needs_of)
    return await handler(request, connection)


async def _watched(handler: Handler, request: Command, connection: Connection) -> Command | None:
    """Some handlers learn only from what they find what a request is about, and refuse it then."""
    try:
        answer = await handler(request, connection)
    except RequestFailed as refusal:
        if refusal.code == ResponseCode.NO_PERMISSION or isinstance(refusal, HiddenRefusal):
            tell_refusal(request, connection.peer[0], refusal.message)
        raise
    if answer is not None and answer.code == ResponseCode.NO_PERMISSION:
        tell_refusal(request, connection.peer[0], answer.remark or "")
    return answer


async def _noted(handler: Handler, request: Command, connection: Connection) -> Command | None:
    """What an operator did, to what, and how it went."""
    what = {key: text[:100] for key, text in request.fields.items() if key in _TELLING_FIELDS}
    done = f"{request_name(request.code)} {what}"
    try:
        answer = await handler(request, connection)
    except Exception as error:
        tell_done(request, connection, f"{done} failed: {str(error)[:300]}")
        raise
    tell_done(request, connection, f"{done} failed with {answer.code}" if answer and answer.code else done)
    return answer


def tell_done(request: Command, connection: Connection, what: str) -> None:
    """For the audit log: what was done by whom from where."""
    audit.info("%s at %s: %s", request.fields.get(ACCESS_KEY, "somebody"), connection.peer, what)


def tell_refusal(request: Command, source: str, why: str) -> None:
    audit.warning("refused %s from %s: %.500s", request_name(request.code), source, why)


def charge(rates: Rates | None, who: str, request: Command) -> None:
    """Count a request whose sender is known. RequestFailed when it is one too many."""
    if rates is not None and rates.are_limited:
        rates.take(who, len(request.body) + sum(map(len, request.fields.values())))  # properties stand in a field


def _refusal(message: str) -> RequestFailed:
    return RequestFailed(ResponseCode.NO_PERMISSION, message)


def request_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)
