"""Managing users and policies (3001 to 3010). The same on broker and name server.

Passwords are taken, never given back.

Java: AdminBrokerProcessor
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.access.gate import tell_done
from orbitmq.access.needs import Action, cluster
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.access import Acl, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.access import AclFilter, DeleteAcl, OfSubject, OfUser, UserFilter
from orbitmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.access.needs import NeedsOf
    from orbitmq.access.users import Users
    from orbitmq.transport.connection import Connection, Handler

_LOOK: Final = cluster(Action.GET)
_CHANGE: Final = cluster(Action.UPDATE)

USER_NEEDS: Final[Mapping[int, NeedsOf]] = {
    RequestCode.AUTH_CREATE_USER: _CHANGE,
    RequestCode.AUTH_UPDATE_USER: _CHANGE,
    RequestCode.AUTH_DELETE_USER: _CHANGE,
    RequestCode.AUTH_GET_USER: _LOOK,
    RequestCode.AUTH_LIST_USER: _LOOK,
    RequestCode.AUTH_CREATE_ACL: _CHANGE,
    RequestCode.AUTH_UPDATE_ACL: _CHANGE,
    RequestCode.AUTH_DELETE_ACL: _CHANGE,
    RequestCode.AUTH_GET_ACL: _LOOK,
    RequestCode.AUTH_LIST_ACL: _LOOK,
}


def access_routes(users: Users, *, enabled: bool) -> dict[int, Handler]:
    """Without access control nobody knows who asks, so nobody may make users: they would be there once it is switched on."""
    if not enabled:
        return dict.fromkeys(USER_NEEDS, _refuse)
    return {
        RequestCode.AUTH_CREATE_USER: partial(create_user, users),
        RequestCode.AUTH_UPDATE_USER: partial(update_user, users),
        RequestCode.AUTH_DELETE_USER: partial(delete_user, users),
        RequestCode.AUTH_GET_USER: partial(get_user, users),
        RequestCode.AUTH_LIST_USER: partial(list_users, users),
        RequestCode.AUTH_CREATE_ACL: partial(create_acl, users),
        RequestCode.AUTH_UPDATE_ACL: partial(create_acl, users),
        RequestCode.AUTH_DELETE_ACL: partial(delete_acl, users),
        RequestCode.AUTH_GET_ACL: partial(get_acl, users),
        RequestCode.AUTH_LIST_ACL: partial(list_acls, users),
    }


async def create_user(users: Users, request: Command, connection: Connection) -> Command:
    user = _user(request)
    await asyncio.to_thread(users.create, user, asker=_asker(request))
    return _done(request, connection, f"created user {user.username}")


async def update_user(users: Users, request: Command, connection: Connection) -> Command:
    user = _user(request)
    await asyncio.to_thread(users.update, user, asker=_asker(request))
    return _done(request, connection, f"changed user {user.username}")


async def delete_user(users: Users, request: Command, connection: Connection) -> Command:
    username = request.read(OfUser).username
    await asyncio.to_thread(users.delete, username, asker=_asker(request))
    return _done(request, connection, f"deleted user {username}")


async def get_user(users: Users, request: Command, connection: Connection) -> Command:
    """An unknown user is an answer without a body, as in Java."""
    user = users.get(request.read(OfUser).username)
    return ok(body=_shown(user).to_json()) if user is not None else ok()


async def list_users(users: Users, request: Command, connection: Connection) -> Command:
    found = users.all(request.read(UserFilter).filter or "")
    return ok(body=msgspec.json.encode([_shown(user) for user in found])) if found else ok()


async def create_acl(users: Users, request: Command, connection: Connection) -> Command:
    acl = Acl.from_json(request.body)
    acl.subject = acl.subject or request.read(OfSubject).subject
    await asyncio.to_thread(users.create_acl, acl)
    return _done(request, connection, f"set policies of {acl.subject}")


async def delete_acl(users: Users, request: Command, connection: Connection) -> Command:
    header = request.read(DeleteAcl)
    await asyncio.to_thread(users.delete_acl, header.subject, header.policy_type, header.resource)
    return _done(request, connection, f"deleted policies of {header.subject} for {header.resource or 'everything'}")


async def get_acl(users: Users, request: Command, connection: Connection) -> Command:
    acl = users.acl(request.read(OfSubject).subject)
    return ok(body=acl.to_json()) if acl is not None else ok()


async def list_acls(users: Users, request: Command, connection: Connection) -> Command:
    header = request.read(AclFilter)
    found = users.acls(header.subject_filter or "", header.resource_filter or "")
    return ok(body=msgspec.json.encode(found)) if found else ok()


async def _refuse(request: Command, connection: Connection) -> Command:
    raise RequestFailed(
        ResponseCode.SYSTEM_ERROR,
        "access control is off: there are no users",
        hint="start the server with authenticationEnabled=true and initAuthenticationUser",
    )


def _user(request: Command) -> User:
    user = User.from_json(request.body)
    user.username = request.read(OfUser).username
    return user


def _shown(user: User) -> User:
    """Apache's broker gives the password away here; it is the key that every request is signed with."""
    return msgspec.structs.replace(user, password=None)


def _asker(request: Command) -> str:
    return request.fields.get(ACCESS_KEY, "")


def _done(request: Command, connection: Connection, what: str) -> Command:
    tell_done(request, connection, what)
    return ok()
