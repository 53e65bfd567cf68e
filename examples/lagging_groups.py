"""Who is behind, and since when: what `orbitmq group lag` shows, from a program. Works on Apache's clusters as on ours.

python examples/lagging_groups.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from orbitmq.admin.groups import list_groups
from orbitmq.admin.offsets import group_lag
from orbitmq.admin.session import open_session


async def main(name_servers: str) -> None:
    async with open_session(name_servers) as session:
        for group in await list_groups(session):
            if group.lag == 0:
                continue
            for topic in await group_lag(session, group.group):
                waiting = f"{topic.lag} messages, {topic.lag_seconds:.0f} s"
                print(f"{group.group} is behind in {topic.topic}: {waiting}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
