"""`connect`: the door to a cluster. Producers and consumers are made here, and end here.

Java: ClientConfig, and the setters of DefaultMQProducer and DefaultMQPushConsumer
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar

from orbitmq.client.assignment import strategy_from
from orbitmq.client.codecs import JSON
from orbitmq.client.config import (
    DEFAULT_INSTANCE_NAME,
    ClientConfig,
    credentials_from,
    name_server_source,
    tls_from,
)
from orbitmq.client.consumer import Consumer
from orbitmq.client.consumer_options import ConsumerOptions
from orbitmq.client.handlers import adapted
from orbitmq.client.lease_consumer import LeaseConsumer
from orbitmq.client.process_queue import CacheLimits
from orbitmq.client.producer import Producer
from orbitmq.client.producer_options import ProducerOptions
from orbitmq.client.pull_consumer import PullConsumer
from orbitmq.client.transactions import TransactionProducer
from orbitmq.errors import AlreadyClosed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from orbitmq.client.assignment import Strategy
    from orbitmq.client.codecs import Codec
    from orbitmq.client.consumer_options import Start
    from orbitmq.client.filters import Sql
    from orbitmq.client.hooks import ConsumeHook, SendHook
    from orbitmq.client.producer_options import CompressionKind
    from orbitmq.client.transaction_checks import Check
    from orbitmq.client.workers import Handler
    from orbitmq.protocol.signing import Credentials


_TIDY_AT: Final = 64  # closed producers and consumers are forgotten when this many have gathered


def connect(
    name_servers: str | Iterable[str] | None = None,
    *,
    credentials: Credentials | tuple[str, str] | tuple[str, str, str] | None = None,
    tls: ssl.SSLContext | bool | None = None,
    namespace: str = "",
    instance_name: str = DEFAULT_INSTANCE_NAME,
    unit_name: str = "",
    vip_channel: bool = False,
    timeout: float = 3.0,
) -> Client:
    """A client of the cluster behind `name_servers`: `host:port`, several of them, or the URL of a page that lists them.

    Without, the environment variable NAMESRV_ADDR says it. `credentials` are access key, secret key and, if there is one, a
    security token. Nothing is contacted before it is needed.

        async with connect("127.0.0.1:9876") as client:
            async with client.producer(group="orders") as producer:
                await producer.send("Orders", b"hello")
    """
    addresses, lookup_url = name_server_source(name_servers)
    return Client(
        ClientConfig(
            name_servers=addresses,
            lookup_url=lookup_url,
            credentials=credentials_from(credentials),
            tls=tls_from(tls),
            namespace=_plain(namespace),
            instance_name=_plain(instance_name),
            unit_name=_plain(unit_name),
            vip_channel=vip_channel,
            timeout_seconds=timeout,
        )
    )


def _plain(text: str) -> str:
    """A member of an enum would be formatted as its name."""
    return str.__str__(text) if isinstance(text, str) else text


class Client:
    """Makes producers and consumers, and closes those that are still open when it is closed itself."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._made: list[Producer | TransactionProducer | Consumer | LeaseConsumer | PullConsumer] = []
        self._tidy_at = _TIDY_AT
        self._closed = False

    def producer(
        self,
        group: str,
        *,
        timeout: float | None = None,
        retries: int = 2,
        retry_unconfirmed: bool = False,
        fault_tolerance: bool = False,
        compression: CompressionKind | None = "zlib",
        compress_over_bytes: int = 4096,
        compression_level: int = 5,
        max_message_bytes: int = 4 << 20,
        max_batch_messages: int = 1024,
        max_in_flight: int = 16_384,
        max_in_flight_bytes: int = 32 << 20,
        create_queues: int = 4,
        accumulate: bool = False,
        accumulate_bytes: int = 32 << 10,
        accumulate_seconds: float = 0.010,
        codec: Codec = JSON,
        hooks: Sequence[SendHook] = (),
    ) -> Producer:
        """A producer of `group`, to be used as `async with client.producer(...) as producer`.

        `retries` are further attempts, on other brokers where there are any, all within `timeout`. `retry_unconfirmed` also
        retries messages that are stored but not yet on disk or replica as the broker promises. `fault_tolerance` avoids
        brokers that were slow. Bodies of at least `compress_over_bytes` are compressed. Sends beyond `max_in_flight` messages
        or bytes wait for earlier ones. `create_queues` is what a topic gets that the first message creates. With
        `accumulate`, small sends of one topic wait up to `accumulate_seconds` for others to share a request with.
        """
        options = ProducerOptions(
            timeout_seconds=self.config.timeout_seconds if timeout is None else timeout,
            retries=retries,
            retry_unconfirmed=retry_unconfirmed,
            fault_tolerance=fault_tolerance,
            compression=compression,
            compress_over_bytes=compress_over_bytes,
            compression_level=compression_level,
            max_message_bytes=max_message_bytes,
            max_batch_messages=max_batch_messages,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            create_queues=create_queues,
            accumulate=accumulate,
            accumulate_bytes=accumulate_bytes,
            accumulate_seconds=accumulate_seconds,
            codec=codec,
            hooks=hooks,
        )
        return self._keep(Producer(self.config, group, options))

    def transaction_producer(
        self,
        group: str,
        *,
        check: Check,
        topics: str | Sequence[str] = (),
        timeout: float | None = None,
        retries: int = 2,
        compression: CompressionKind | None = "zlib",
        compress_over_bytes: int = 4096,
        compression_level: int = 5,
        max_message_bytes: int = 4 << 20,
        create_queues: int = 4,
        codec: Codec = JSON,
        hooks: Sequence[SendHook] = (),
    ) -> TransactionProducer:
        """A producer of messages that become visible only when they are committed, to be used as `async with`.

        `check` is asked by brokers that have not heard how a transaction ended, of this process or another one of `group`:
        an async function or a blocking one (which gets a thread) that takes the message, or its body as a value if its
        parameter is annotated so. True commits, False rolls back, None means not known yet. After a restart brokers can ask
        before anything is sent, if they have the template topic or one of `topics`.

            async with client.transaction_producer(group="pay", check=is_paid) as producer:
                async with producer.begin("Payments", order) as transaction:
                    await charge_card(order)
                    transaction.commit()
        """
        options = ProducerOptions(
            timeout_seconds=self.config.timeout_seconds if timeout is None else timeout,
            retries=retries,
            compression=compression,
            compress_over_bytes=compress_over_bytes,
            compression_level=compression_level,
            max_message_bytes=max_message_bytes,
            create_queues=create_queues,
            codec=codec,
            hooks=hooks,
        )
        return self._keep(TransactionProducer(self.config, group, options, adapted(check, codec), _listed(topics)))

    def consumer(
        self,
        topics: str | Sequence[str] | Mapping[str, str | Sql | None],
        *,
        group: str,
        filter: str | Sql | None = None,  # noqa: A002 - the word everybody uses for it
        handler: Handler | None = None,
        codec: Codec = JSON,
        start: Start = "latest",
        broadcasting: bool = False,
        orderly: bool = False,
        strategy: str | Strategy = "averagely",
        concurrency: int = 20,
        batch_size: int = 1,
        pull_batch_size: int = 32,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_span: int = 2000,
        max_retries: int | None = None,
        consume_timeout: float = 900.0,
        suspend: float = 1.0,
        commit_every: float = 5.0,
        close_timeout: float = 30.0,
        offset_directory: Path | str | None = None,
        hooks: Sequence[ConsumeHook] = (),
    ) -> Consumer:
        """A member of consumer group `group`, to be used as `async with client.consumer(...) as consumer`.

        `topics` is one, several, or a mapping of topics to filters. `filter` names tags, `"new || paid"`, or is `Sql(...)`.
        With `handler`, an async function or a blocking one (which gets a thread), up to `concurrency` messages are handled at
        once, or lists of up to `batch_size`: returning acks, raising delivers again later, `max_retries` times. Without,
        iterate over the consumer. A handler whose parameter is annotated with another type than a message gets the body as
        such a value, by the `codec`.

        `start` says where a group begins that is new to a queue. All members of a `broadcasting` group get everything.
        `orderly` handles each queue's messages one after the other; a failing one is tried again in place after `suspend`
        seconds. Pulling a queue pauses at `max_cached_messages`, `max_cached_bytes`, or `max_span` between the first and last
        offset held. A handler that runs longer than `consume_timeout` loses its message to somebody else.
        """
        if handler is not None:
            handler = adapted(handler, codec, batches=batch_size > 1)
        wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(_listed(topics), filter)
        options = ConsumerOptions(
            start=start,
            broadcasting=broadcasting,
            orderly=orderly,
            strategy=strategy_from(strategy),
            concurrency=concurrency,
            batch_size=batch_size,
            pull_batch_size=pull_batch_size,
            cache=CacheLimits(messages=max_cached_messages, bytes=max_cached_bytes, span=max_span),
            max_retries=max_retries,
            consume_timeout_seconds=consume_timeout,
            suspend_seconds=suspend,
            commit_seconds=commit_every,
            close_timeout_seconds=close_timeout,
            offset_directory=None if offset_directory is None else Path(offset_directory),
            hooks=hooks,
        )
        return self._keep(Consumer(self.config, group, wanted, options, handler))

    def lease_consumer(
        self,
        topic: str,
        *,
        group: str,
        filter: str | Sql | None = None,  # noqa: A002 - the word everybody uses for it
        start: Literal["earliest", "latest"] = "latest",
        lease: timedelta = timedelta(minutes=1),
        orderly: bool = False,
        prefetch: int = 8,
        hooks: Sequence[ConsumeHook] = (),
    ) -> LeaseConsumer:
        """A consumer that leases messages from brokers one by one, to be used as `async with client.lease_consumer(...)`.

        A message that is not acked within `lease` comes again, here or elsewhere; `extend` gives more time. Members of the
        group need not share out queues, so none waits for another. With `orderly` a queue hands out its next messages only
        when those before are acked, and those again that were not: each message group in its order. An iteration keeps up to `prefetch` leased messages ready.
        Brokers must be able to lease: Apache's from 5.0 on, and ours.
        """
        return self._keep(
            LeaseConsumer(
                self.config,
                topic,
                group,
                wanted=filter,
                start=start,
                lease=lease,
                prefetch=prefetch,
                orderly=orderly,
                hooks=hooks,
            )
        )

    def pull_consumer(
        self,
        group: str,
        *,
        start: Start = "earliest",
        strategy: str | Strategy = "averagely",
        auto_commit: bool = True,
        commit_every: float = 5.0,
        pull_batch_size: int = 32,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_span: int = 2000,
        hooks: Sequence[ConsumeHook] = (),
    ) -> PullConsumer:
        """A reader at one's own pace, to be used as `async with client.pull_consumer(...) as reader`.

        `fetch` reads any queue at any offset. `subscribe` or `assign`, then `poll`, read on from where the group left off,
        or from `start` when it is new. With `auto_commit` each poll says that the messages of the one before are done with;
        without, `commit` does. Hooks see what a poll gives, and that it is handled, at once: nobody says how that ends.
        """
        options = ConsumerOptions(
            start=start,
            strategy=strategy_from(strategy),
            pull_batch_size=pull_batch_size,
            cache=CacheLimits(messages=max_cached_messages, bytes=max_cached_bytes, span=max_span),
            commit_seconds=commit_every,
            hooks=hooks,
        )
        return self._keep(PullConsumer(self.config, group, options, auto_commit=auto_commit))

    async def close(self) -> None:
        """Close what was made here and is still open, last made first. Safe to call twice."""
        self._closed = True
        failures: list[Exception] = []
        while self._made:
            try:
                await self._made.pop().close()
            except Exception as error:  # one that cannot be closed must not keep the others open
                failures.append(error)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("this client is closed", hint="connect() makes a new one")

    def _keep(self, made: P) -> P:
        self._check_open()
        if len(self._made) >= self._tidy_at:
            self._made = [one for one in self._made if not one.closed]
            self._tidy_at = 2 * len(self._made) + _TIDY_AT
        self._made.append(made)
        return made


def _listed(topics: str | Sequence[str]) -> Sequence[str]:
    return [topics] if isinstance(topics, str) else topics


P = TypeVar("P", Producer, TransactionProducer, Consumer, LeaseConsumer, PullConsumer)
