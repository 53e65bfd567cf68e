"""The client: producers and consumers for asyncio programs; `orbitmq.sync` is the same for blocking ones."""
