"""Users and their policies, as the codes 3001 to 3010 carry them. Java: UserInfo, AclInfo"""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.bodies.base import Body

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"

CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"


class User(Body):
    """What is None is not said, and stays as it is."""

    username: str = ""
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type}, {self.user_status})"  # a password is for nobody's eyes

    @property
    def is_super(self) -> bool:
        return self.user_type == SUPER


class PolicyEntry(Body):
    resource: str = ""
    actions: list[str] = []
    source_ips: list[str] = []
    decision: str = ""


class Policy(Body):
    policy_type: str = CUSTOM
    entries: list[PolicyEntry] = []


class Acl(Body):
    """All policies of one subject, `User:<name>`."""

    subject: str = ""
    policies: list[Policy] = []
