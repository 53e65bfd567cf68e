"""Building the gate at a server's start."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orbitmq.access.gate import Gate
from orbitmq.access.migration import migrate
from orbitmq.access.plain_file import access_files, read_access_files
from orbitmq.access.users import Users
from orbitmq.protocol.signing import Credentials, sign

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.access.gate import Door
    from orbitmq.access.settings import AccessSettings
    from orbitmq.protocol.command import Command
    from orbitmq.transport.rates import Rates

logger = logging.getLogger(__name__)


def open_users(settings: AccessSettings, folder: Path, access_file: Path) -> Users:
    """The users of a server, the first among them made if there is none of its name, and those of `access_file` if wanted."""
    users = Users(Path(settings.auth_config_path) if settings.auth_config_path else folder)
    first = settings.first_user()
    if first is not None and users.get(first.username) is None:
        users.create(first)
        logger.info("created super user %s, as initAuthenticationUser says", first.username)
    if settings.migrate_auth_from_v1_enabled:
        files = access_files(access_file)
        made = migrate(users, read_access_files(files))
        logger.info("made %d users of the accounts in %s", len(made), ", ".join(map(str, files)) or "no file")
    return users


def open_gate(settings: AccessSettings, users: Users, cluster: str, rates: Rates | None = None) -> Door | None:
    """None if everyone may do everything."""
    return Gate(users, settings, cluster, rates) if settings.is_guarded else None


def own_signature(settings: AccessSettings) -> Callable[[Command], None] | None:
    """How this server signs what it asks of others."""
    credentials = settings.own_credentials()
    return partial(_sign, credentials) if credentials is not None else None


def _sign(credentials: Credentials, request: Command) -> None:
    sign(request, credentials)
