"""What the settings of access control and of load limits mean; part of the broker's and of the name server's."""

from __future__ import annotations

from typing import Final

from orbitmq.settings_reference import read_explanations

EXPLAINED: Final = read_explanations("""
# Access
authenticationEnabled | | whoever asks must sign, and be a user
authorizationEnabled | | users may do only what a policy allows
authenticationWhitelist | | request codes that need no signature, parted by commas
authorizationWhitelist | | request codes that need no policy, parted by commas
initAuthenticationUser | | {"username": ..., "password": ...}: made a super user if there is none of that name
innerClientAuthenticationCredentials | | {"accessKey": ..., "secretKey": ...}: what this server signs its own requests with
authConfigPath | | the directory of users and policies; empty: with the rest of what the server keeps
orbitmq.trustedProxies | | addresses or networks, parted by semicolons, that may say in a PROXY header where a connection comes from; from any other a header ends it. Empty: everyone, but loopback alone with access control or a limit by address
migrateAuthFromV1Enabled | | accounts of 4.x access files become users and policies at the start
authenticationProvider | | without effect: there is one
authenticationMetadataProvider | | without effect: there is one
authorizationProvider | | without effect: there is one
authorizationMetadataProvider | | without effect: there is one

# Limits (0: none)
orbitmq.maxConnections | connections | in all; more are refused
orbitmq.maxConnectionsPerAddress | connections | from one address
orbitmq.requestsPerSecondPerAddress | requests/s | from one address
orbitmq.bytesPerSecondPerAddress | bytes/s | from one address
orbitmq.requestsPerSecondPerUser | requests/s | of one user
orbitmq.bytesPerSecondPerUser | bytes/s | of one user
orbitmq.maxFrameBytes | bytes | of a request; a larger one ends its connection
orbitmq.maxHeaderBytes | bytes | of a request's header; a larger one ends its connection
""")
