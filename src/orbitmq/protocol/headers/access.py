"""Headers of the codes that manage users and policies (3001 to 3010), and access files of 4.x (50 to 54)."""

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


class PlainAccount(Header):
    """An account of a 4.x access file; what is None stays as it is. Java: CreateAccessConfigRequestHeader"""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None  # parted by commas
    group_perms: str | None = None


class OfAccount(Header):
    """Java: DeleteAccessConfigRequestHeader"""

    access_key: str


class WhiteAddresses(Header):
    """Java: UpdateGlobalWhiteAddrsConfigRequestHeader"""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class AccessFileVersions(Header):
    """Java: GetBrokerAclConfigResponseHeader"""

    version: str  # of the main file, as JSON
    all_acl_file_version: str  # of each file, by its path
    broker_name: str
    broker_addr: str
    cluster_name: str
