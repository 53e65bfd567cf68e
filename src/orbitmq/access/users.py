"""Users and their policies, kept in two files and checked against requests.

    <folder>/users.json    [{"username", "password", "userType": "Super" | "Normal", "userStatus": "enable" | "disable"}]
    <folder>/acls.json     [{"subject": "User:<name>", "policies": [...]}]

The password is the secret key that requests are signed with, so it has to be kept as it is; the files are readable for their
owner alone. Apache's broker keeps the same objects in RocksDB.

Java: AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import msgspec

from orbitmq.access.policies import Entry, check_acl, merged, read_entry, without
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.bodies.access import CUSTOM, DISABLED, ENABLED, NORMAL, SUPER, Acl, Policy, User
from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.codes import ResponseCode
from orbitmq.saved_file import save

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", bound=Body)


class Users:
    """Changes are saved before they count. They may come from any thread, questions from any other at the same time."""

    def __init__(self, folder: Path) -> None:
        self._users_file = folder / "users.json"
        self._acls_file = folder / "acls.json"
        users, acls = _load(self._users_file, list[User]), _load(self._acls_file, list[Acl])
        _check_files(self._users_file, users, self._acls_file, acls)
        self._users = {user.username: user for user in users}
        self._acls = {acl.subject: acl for acl in acls}
        self._entries: dict[str, tuple[list[Entry], list[Entry]]] = {}  # by user: custom, default; a new one per change
        self.generation = (
            0  # of users and policies; raised after each change, so that what is kept under it is not older
        )
        self._changing = Lock()  # each change is made of what all before it left

    # ---- questions

    def get(self, username: str) -> User | None:
        return self._users.get(username)

    def all(self, part: str = "") -> list[User]:
        return [user for name, user in sorted(self._users.items()) if part in name]

    def acl(self, subject: str) -> Acl | None:
        return self._acls.get(subject)

    def acls(self, subject_part: str = "", resource_part: str = "") -> list[Acl]:
        found = []
        for subject, acl in sorted(self._acls.items()):
            resources = [entry.resource for policy in acl.policies for entry in policy.entries]
            if subject_part in subject and any(resource_part in resource for resource in resources):
                found.append(acl)
        return found

    def entries(self, username: str) -> tuple[list[Entry], list[Entry]]:
        """What the user's custom and default policies say."""
        entries = self._entries  # before the policies: what is read of old ones must not outlive them
        found = entries.get(username)
        if found is None:
            acl = self._acls.get(f"User:{username}")
            found = ([], [])
            for policy in acl.policies if acl is not None else []:
                found[policy.policy_type != CUSTOM].extend(map(read_entry, policy.entries))
            entries[username] = found
        return found

    # ---- changes; `asker`: the user who wants it, None for the server itself

    def create(self, user: User, policies: list[Policy] | None = None, *, asker: str | None = None) -> None:
        """With these policies and no others, and those first: if the disk fails between, there is no user yet to lack them."""
        subject = f"User:{user.username}"
        acl = Acl(subject=subject, policies=policies or [])
        if policies:
            _check(acl)
        with self._changing:
            self._check_super(asker, user)
            if user.username in self._users:
                raise _refused("The user is existed")
            checked = _checked(user, User(user_type=NORMAL, user_status=ENABLED))
            if policies or subject in self._acls:
                others = {name: other for name, other in self._acls.items() if name != subject}
                self._write_acls({**others, subject: merged(Acl(subject=subject), acl)} if policies else others)
            self._put(checked)

    def update(self, user: User, *, asker: str | None = None) -> None:
        with self._changing:
            self._check_super(asker, user, self._users.get(user.username))
            self._put(_checked(user, self._require(user.username)))

    def delete(self, username: str, *, asker: str | None = None) -> None:
        """With its policies, and those first: a new user of that name starts without any, even if the disk fails between."""
        with self._changing:
            self._check_super(asker, self._users.get(username))
            self._write_acls({subject: acl for subject, acl in self._acls.items() if subject != f"User:{username}"})
            self._write_users({name: user for name, user in self._users.items() if name != username})

    def create_acl(self, acl: Acl) -> None:
        """Adds to what there is for the subject."""
        _check(acl)
        with self._changing:
            self._require(acl.subject.removeprefix("User:"), f"The subject of {acl.subject} is not exist.")
            old = self._acls.get(acl.subject, Acl(subject=acl.subject))
            self._write_acls({**self._acls, acl.subject: merged(old, acl)})

    def delete_acl(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        with self._changing:
            self._require(subject.removeprefix("User:"), "The subject is not exist.")
            acl = self._acls.get(subject)
            if acl is None:
                raise _refused("The acl is not exist.")
            left = without(acl, policy_type, resource)
            others = {name: other for name, other in self._acls.items() if name != subject}
            self._write_acls(others if left is None else {**others, subject: left})

    def _check_super(self, asker: str | None, *touched: User | None) -> None:
        """Only a super user touches one. Asked while nothing else can change: either may have become another before."""
        if asker is None or not any(user is not None and user.is_super for user in touched):
            return
        asking = self._users.get(asker)
        if asking is None or not asking.is_super:
            raise _refused("only a super user may make, change or delete a super user")

    def _require(self, username: str, otherwise: str = "The user is not exist") -> User:
        user = self._users.get(username)
        if user is None:
            raise _refused(otherwise)
        return user

    def _put(self, user: User) -> None:
        self._write_users({**self._users, user.username: user})

    def _write_users(self, users: dict[str, User]) -> None:
        _save(self._users_file, list(users.values()))
        self._users = users
        self._entries = {}
        self.generation += 1

    def _write_acls(self, acls: dict[str, Acl]) -> None:
        _save(self._acls_file, list(acls.values()))
        self._acls = acls
        self._entries = {}
        self.generation += 1


def _check(acl: Acl) -> None:
    try:
        check_acl(acl)
    except ConfigError as error:
        raise _refused(str(error)) from None


def _checked(user: User, before: User) -> User:
    """What is not said stays as it was."""
    if not user.username.strip() or any(not character.isprintable() for character in user.username):
        raise _refused("username can not be blank")
    checked = User(
        username=user.username,
        password=user.password or before.password,
        user_type=user.user_type or before.user_type,
        user_status=user.user_status or before.user_status,
    )
    if not checked.password:
        raise _refused("password can not be blank")
    if checked.user_type not in (SUPER, NORMAL) or checked.user_status not in (ENABLED, DISABLED):
        raise _refused("userType is Super or Normal, userStatus enable or disable")
    return checked


def _refused(message: str) -> RequestFailed:
    return RequestFailed(ResponseCode.NO_PERMISSION, message)


def _load(path: Path, shape: type[list[T]]) -> list[T]:
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="restore it from its .bak") from None


def _check_files(users_file: Path, users: list[User], acls_file: Path, acls: list[Acl]) -> None:
    """They may have been edited: without a password anybody could sign, a status that is mistyped would leave a user enabled."""
    for user in users:
        try:
            _checked(user, User())
        except RequestFailed as error:
            raise ConfigError(
                f"{users_file}, user {user.username!r}: {error.message}", hint="mend it, or restore it from its .bak"
            ) from None
    if len({user.username for user in users}) != len(users):
        raise ConfigError(f"{users_file} has a user twice", hint="leave one of the two")
    for acl in acls:
        try:
            check_acl(acl)
        except ConfigError as error:
            raise ConfigError(f"{acls_file}: {error.message}", hint=error.hint) from None


def _save(path: Path, content: list[User] | list[Acl]) -> None:
    try:
        save(path, msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n", private=True)
    except OSError as error:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, f"cannot save {path}: {error.strerror}; nothing was changed"
        ) from None
