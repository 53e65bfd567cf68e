"""Headers of the codes that manage users and policies (3001 to 3010)."""

from __future__ import annotations

from orbitmq.protocol.headers.base import Header


class OfUser(Header):
    """Java: CreateUserRequestHeader and kin"""

    username: str


class UserFilter(Header):
    """Java: ListUsersRequestHeader"""

    filter: str | None = None


class OfSubject(Header):
    """Java: CreateAclRequestHeader and kin"""

    subject: str


class DeleteAcl(Header):
    subject: str
    policy_type: str | None = None
    resource: str | None = None


class AclFilter(Header):
    """Java: ListAclsRequestHeader"""

    subject_filter: str | None = None
    resource_filter: str | None = None
