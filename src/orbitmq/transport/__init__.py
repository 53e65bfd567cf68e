"""How bytes move: asyncio connections, servers, pools, TLS. Knows frames and commands, not what they mean."""
