"""The bits of a message's sysFlag: what the body is and how long the hosts are.

    0x001        body is compressed
    0x002        the topic is filtered by several tags
    0x00C        transaction: none, prepared, committed, rolled back
    0x010 0x020  born host, store host is IPv6 (20 bytes instead of 8)
    0x040 0x080  the body is a batch that the consumer unpacks
    0x700        compression: none said (zlib), LZ4, zstd, zlib

Java: MessageSysFlag
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x001
MULTI_TAGS: Final = 0x002

TRANSACTION_MASK: Final = 0x00C
TRANSACTION_NONE: Final = 0x000
TRANSACTION_PREPARED: Final = 0x004
TRANSACTION_COMMIT: Final = 0x008
TRANSACTION_ROLLBACK: Final = 0x00C

BORN_HOST_IPV6: Final = 0x010
STORE_HOST_IPV6: Final = 0x020
HOSTS_MASK: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6

NEED_UNWRAP: Final = 0x040
INNER_BATCH: Final = 0x080

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300
