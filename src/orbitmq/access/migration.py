"""Accounts of 4.x access files made users and policies of 5.x, at a start with `migrateAuthFromV1Enabled=true`.

    account, admin            user; a super user if it is an admin
    topicPerms, groupPerms    custom policies: PUB, SUB or both are allowed, DENY and what is not understood is denied
    default...Perm            default policies, for `Topic:*` and `Group:*`

A user that is there already is left alone, so it may be left on. White addresses have no like in 5.x: those of an account are logged
and left out.

Java: AuthMigrator
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.access.needs import Action, Kind
from orbitmq.access.plain_file import Permission
from orbitmq.protocol.bodies.access import CUSTOM, DEFAULT, ENABLED, NORMAL, SUPER, Policy, PolicyEntry, User

if TYPE_CHECKING:
    from orbitmq.access.plain_file import Account, PlainAccess
    from orbitmq.access.users import Users

logger = logging.getLogger(__name__)


def migrate(users: Users, access: PlainAccess) -> list[str]:
    """The users that were made."""
    made = []
    for account in access.accounts.values():
        if users.get(account.access_key) is not None:
            continue
        users.create(user_of(account), policies_of(account))
        if account.from_anywhere_in.text:
            logger.warning(
                "account %s had the white address %s: as a user it has to sign from there, too",
                account.access_key,
                account.from_anywhere_in.text,
            )
        made.append(account.access_key)
    if access.white_addresses:
        white = ", ".join(pattern.text for pattern in access.white_addresses)
        logger.warning(
            "global white addresses (%s) have no like among users and policies: nobody passes unasked", white
        )
    return made


def user_of(account: Account) -> User:
    return User(
        username=account.access_key,
        password=account.secret_key,
        user_type=SUPER if account.is_admin else NORMAL,
        user_status=ENABLED,
    )


def policies_of(account: Account) -> list[Policy]:
    custom = [_entry(f"{Kind.TOPIC}:{name}", permission) for name, permission in account.topics.items()]
    custom += [_entry(f"{Kind.GROUP}:{name}", permission) for name, permission in account.groups.items()]
    defaults = {Kind.TOPIC: account.default_topic, Kind.GROUP: account.default_group}
    # What no policy mentions is refused, so a default of DENY need not be said.
    default = [
        _entry(f"{kind}:*", permission) for kind, permission in defaults.items() if permission != Permission.DENY
    ]
    kinds = ((CUSTOM, custom), (DEFAULT, default))
    return [Policy(policy_type=kind, entries=entries) for kind, entries in kinds if entries]


def _entry(resource: str, permission: Permission) -> PolicyEntry:
    if permission & Permission.DENY or not permission:
        return PolicyEntry(resource=resource, actions=[Action.ALL], decision="Deny")
    actions = [
        action for flag, action in ((Permission.PUB, Action.PUB), (Permission.SUB, Action.SUB)) if permission & flag
    ]
    return PolicyEntry(resource=resource, actions=list(actions), decision="Allow")
