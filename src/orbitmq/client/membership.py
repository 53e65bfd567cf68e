"""Being a member of a consumer group: owning a share of its queues, pulling them, keeping their offsets, giving them up again.

    start ─> heartbeat ─> rebalance at once ─> a pull loop for each queue
                             ^    again when members, routes or connections change, and every 20 s
                             └──────────────────────────────────────────────────────────────────

Java: RebalanceImpl, RebalancePushImpl
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final, SupportsIndex

import msgspec

from orbitmq.client import questions
from orbitmq.client.assignment import share_of
from orbitmq.client.consumer_options import check_start, consume_from_where
from orbitmq.client.figures import EVERY_SECONDS, Figures
from orbitmq.client.incoming import Incoming
from orbitmq.client.names import LIGHT_PREFIX, RETRY_PREFIX, retry_topic
from orbitmq.client.namespaces import unwrapped
from orbitmq.client.option_checks import queues_given
from orbitmq.client.pauses import Pauses
from orbitmq.client.process_queue import ProcessQueue
from orbitmq.client.pulling import Puller
from orbitmq.client.queue_locks import KEPT_SECONDS, RENEW_SECONDS, TRUSTED_SECONDS, QueueLocks
from orbitmq.client.starting_points import Latest, first_offset, offset_of
from orbitmq.errors import AlreadyClosed, ConfigError, OrbitError, RequestFailed
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.groups import ConsumerData
from orbitmq.protocol.codes import ResponseCode
from orbitmq.tasks import Tasks, every, is_cancelled, set_within, shared

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from orbitmq.client.consumer_options import ConsumerOptions, Start
    from orbitmq.client.filters import Subscription
    from orbitmq.client.instance import Instance
    from orbitmq.client.offsets import Offsets
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.stats import ConsumerStats
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

_REBALANCE_SECONDS: Final = 20.0
_UNBALANCED_SECONDS: Final = 1.0
_ROUND_SECONDS: Final = 3.0  # that a subscriber waits
_COMMIT_AGAIN_SECONDS: Final = 1.0
_BEHIND_PULLS_SECONDS: Final = 0.1  # by then a broker that answers commits has begun with every pull before them
_HAND_OVER_SECONDS: Final = 20.0  # how long a running orderly handler may keep its queue from the next owner


class Membership:
    """The queues of one consumer."""

    def __init__(
        self,
        instance: Instance,
        group: str,
        options: ConsumerOptions,
        offsets: Offsets,
        stats: ConsumerStats,
        *,
        consume_type: str,
        deliver: Callable[[ProcessQueue, list[ReceivedMessage]], None],
        lock_renewed: Callable[[ProcessQueue], None] | None = None,
        handle_now: Callable[[ReceivedMessage], Awaitable[Exception | None]] | None = None,
        fixed: Sequence[QueueRef] | None = None,
    ) -> None:
        """`handle_now` runs the handler on a message that a tool sent, outside of all queues; None if there is no handler.
        With `fixed` these queues are ours whatever others do, and the brokers count us as no member.
        """
        self.group = group
        self.options = options
        self.stats = stats
        self.consume_type = consume_type
        self.started_at_ms = instance.config.clock.now_ms()
        self.handle_now = handle_now
        self._fixed = fixed
        self.incoming = Incoming(instance.config.namespace, retry_topic(group))
        self.queues: dict[QueueRef, ProcessQueue] = {}
        self._pauses = Pauses()
        self.figures = Figures(asyncio.get_running_loop().time())
        self.subscriptions: dict[str, Subscription] = {}
        self._newest_version = 0  # of a subscription
        self._changed: set[str] = set()  # topics whose filter is another one now
        self._latest = Latest(instance.config.clock)
        self._instance = instance
        self.cluster = instance.cluster
        self._offsets = offsets
        self._lock_renewed = lock_renewed
        self._locks = None
        if options.orderly and not options.broadcasting:
            self._locks = QueueLocks(instance.cluster, group, instance.client_id)
        self._puller = Puller(
            instance.cluster,
            group,
            offsets,
            self.incoming,
            stats,
            batch_size=options.pull_batch_size,
            # A pull that is carried out late would take the offset back, and an orderly queue with it.
            commits=not options.broadcasting and not options.orderly,
            says_filters=fixed is not None,
            deliver=deliver,
            moved=self._moved,
        )
        self._tasks = Tasks()
        self._pulls: dict[QueueRef, asyncio.Task[None]] = {}
        self._moves: defaultdict[QueueRef, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._leaving: set[QueueRef] = set()
        self._locked: set[QueueRef] = set()  # held now, or being handed over
        self._look_again = asyncio.Event()
        self._next_round = self._awaited_round = asyncio.Event()  # of rebalancing: it has ended
        self._stopped = False
        self._warned_of: set[str] = set()
        self._missed: dict[str, int] = {}  # topics without a route -> how often they were looked for
        self._failing: set[str] = set()  # topics whose rebalancing fails for no reason that was foreseen

    # ---- life

    async def start(self) -> None:
        """Fails when the cluster cannot be reached at all; everything else is tried again until it works."""
        try:
            await self._start()
        except BaseException:
            self._next_round.set()
            await self._tasks.close()
            if self._fixed is None:
                await self._instance.remove_consumer(self)
            raise

    async def _start(self) -> None:
        await self._look_at_topics()
        self._check_wanted()
        if self._fixed is None:
            self._instance.add_consumer(self)
            await self._introduce()
            self._check_wanted()
        self._tasks.start(self._keep_balanced(), f"rebalancing {self.group}")
        self._tasks.start(
            every(lambda: self.options.commit_seconds, self.save_offsets, f"committing offsets of {self.group}"),
            f"offsets of {self.group}",
        )
        self._tasks.start(every(EVERY_SECONDS, self._sample, f"figures of {self.group}"), f"figures of {self.group}")
        if self._locks is not None:
            self._tasks.start(
                every(lambda: RENEW_SECONDS, self._renew_locks, f"renewing locks of {self.group}"),
                f"locks of {self.group}",
            )

    def _check_wanted(self) -> None:
        if self._stopped:
            raise AlreadyClosed(f"group {self.group!r} was left while it was joined", hint="make a new consumer")

    async def _look_at_topics(self) -> None:
        """At those that are new."""
        for topic in [topic for topic in self.subscriptions if not self._latest.knows(topic)]:
            route = await self.cluster.route(topic)
            there: Iterable[QueueRef] = route.readable if route is not None else ()
            if self._fixed is not None and topic.startswith(LIGHT_PREFIX):
                there = self._fixed
            if topic in self.subscriptions:
                self._latest.begin(topic, there)

    async def balanced_once(self) -> None:
        """Return when our queues of what was subscribed are being read, so that what is sent from then on comes; or when that takes long."""
        await set_within(self._awaited_round, _ROUND_SECONDS)

    async def stop_pulling(self) -> None:
        """No new messages and no new queues; what is held stays held."""
        self._stopped = True
        self._next_round.set()  # nobody waits for one that does not come
        await self._tasks.close()
        pulls = list(self._pulls.values())
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    async def leave(self) -> None:
        """Save offsets, give up locks, tell the brokers."""
        try:
            if await self.save_offsets():  # of queues that were just being handed over, too
                await self._save_behind_pulls()
            for held in self.queues.values():
                held.drop()
            if self._locks is not None:
                await self._locks.unlock(self._locked)
        finally:
            self.queues.clear()
            if self._fixed is None:
                await self._instance.remove_consumer(self)

    # ---- what the instance and the consumer call

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model="BROADCASTING" if self.options.broadcasting else "CLUSTERING",
            consume_from_where=consume_from_where(self.options.start),
            subscription_data_set=[one.body() for one in self.subscriptions.values()],
        )

    @property
    def is_fixed(self) -> bool:
        return self._fixed is not None

    def rebalance_soon(self) -> None:
        self._look_again.set()

    def reconnected(self) -> None:
        """A broker is new, or back: it may have forgotten our locks, and who asks first has them."""
        if self._locks is not None:
            self._tasks.start(self._renew_locks(), f"renewing locks of {self.group} at once")
        self.rebalance_soon()

    def subscribe(self, wanted: Subscription) -> None:
        """From here on this is what is wanted of its topic; `subscriptions_changed` tells the brokers.

        They let the newest version win, and of two that are equal the one that they have, so each is newer than those before:
        within the same millisecond, and with a clock that was set back.
        """
        self._newest_version = max(self._newest_version + 1, self._instance.config.clock.now_ms())
        before = self.subscriptions.get(wanted.topic)
        if before is not None and (before.expression, before.is_sql) != (wanted.expression, wanted.is_sql):
            self._changed.add(wanted.topic)
        self.subscriptions[wanted.topic] = msgspec.structs.replace(wanted, version=self._newest_version)

    def unsubscribe(self, topic: str) -> None:
        """Nothing more is wanted of it. Until its queues are given up they are pulled as before: it may be wanted again by then."""
        if self.subscriptions.pop(topic, None) is not None:
            self._changed.add(topic)
            self._latest.forget(topic)

    async def subscriptions_changed(self) -> None:
        try:
            await self._look_at_topics()
        except OrbitError:
            for topic in self.subscriptions:
                if not self._latest.knows(topic):
                    self._latest.begin(topic, ())
        await self._introduce()
        changed = self._changed & self.subscriptions.keys()
        self._changed -= changed
        for queue, held in self.queues.items():
            if queue.topic in changed and queue in self._pulls:
                # Brokers hold a pull with the filter that it came with, and would pass over what is wanted now.
                self._end_pull(queue)
                self._start_pull(held)
        self._awaited_round = self._next_round
        self.rebalance_soon()

    def _sample(self) -> None:
        self.figures.sample(asyncio.get_running_loop().time())

    async def save_offsets(self) -> bool:
        for held in self.queues.values():
            if _may_have_been_elsewhere(held):
                self._offsets.forget(held.queue)  # until that is known: another member may be further
        return await self._offsets.save()

    async def _save_behind_pulls(self) -> None:
        """Brokers carry out pulls and commits side by side: one that still brings an older offset may have taken it back."""
        brought = [queue for queue in self.queues if self._puller.brings_another_commit(queue)]
        if brought:
            await asyncio.sleep(_BEHIND_PULLS_SECONDS)
            for queue in brought:
                offset = self._offsets.known(queue)
                if offset is not None:
                    self._offsets.forget(queue)
                    self._offsets.set(queue, offset)
            await self._offsets.save(brought)

    def pause(self, queues: Iterable[QueueRef] | None) -> None:
        """Pull no more from these, by their public names, or from all, until `resume`, whoever has them meanwhile."""
        wanted = None if queues is None else queues_given(queues)
        self._pauses.put(wanted, paused=True)
        for held in self._named(wanted):
            held.pause()

    def resume(self, queues: Iterable[QueueRef] | None) -> None:
        wanted = None if queues is None else queues_given(queues)
        self._pauses.put(wanted, paused=False)
        for held in self._named(wanted):
            held.resume()

    def _named(self, wanted: set[QueueRef] | None) -> list[ProcessQueue]:
        return [held for held in self.queues.values() if wanted is None or held.public_queue in wanted]

    async def seek(self, queue: QueueRef, to: int | Start) -> None:
        """Go on there with a queue, by its public name. ConfigError if it is not ours, or is given up meanwhile."""
        if not isinstance(to, SupportsIndex):  # numpy's whole numbers are such, too
            check_start(to)
        for held in self._named({queue}):
            offset = int(to) if isinstance(to, SupportsIndex) else await offset_of(self.cluster, held.queue, to)
            if await self.restart(held.queue, offset):
                return
        raise ConfigError(
            f"{queue} cannot be sought: it is not assigned to this member of group {self.group}",
            hint="seek what `assigned` lists, once it does; `orbitmq group reset` moves a group whoever has its queues",
        )

    async def restart(self, queue: QueueRef, offset: int) -> bool:
        """Go on at `offset`, wherever that is. What was pulled and not handled is forgotten, what is being handled does not
        count any more. False, and nothing done, if the queue is not ours, or is given up before that.

        Who is cancelled meanwhile leaves it going on: halfway the queue is read by nobody.
        """
        name = f"moving {queue.topic}/{queue.queue_id}"
        moving = self._tasks.start(self._restart_in_turn(queue, offset), name)
        if moving is None:
            return False  # the consumer is being closed
        has_moved: bool = await shared(
            moving, lambda: AlreadyClosed(f"{queue} was given up while it moved", hint="close it later")
        )
        return has_moved

    async def _restart_in_turn(self, queue: QueueRef, offset: int) -> bool:
        """Of two at once the later one counts, which finds the queue where the first has left it."""
        async with self._moves[queue]:
            return await self._restart(queue, offset)

    async def _restart(self, queue: QueueRef, offset: int) -> bool:
        held = self.queues.get(queue)
        if held is None:
            return False
        self._end_pull(queue)  # first: what it brought while a handler ends would be handled out of order
        if self.options.orderly and held.handed_out:
            held.pending.clear()
            await self._until_idle(held)
            if self.queues.get(queue) is not held:
                return False  # its next owner may have committed already
        held.drop()
        self._offsets.set(queue, offset)
        await self._offsets.save([queue])
        if self.queues.get(queue) is held:
            if queue.topic in self.subscriptions:
                self._begin(queue, offset, held.locked_at)
            else:
                await self._give_up([queue])  # at once: if its topic is wanted again it must be taken over, to be read
        return True

    def _end_pull(self, queue: QueueRef) -> None:
        pull = self._pulls.pop(queue, None)
        if pull is not None:
            pull.cancel()

    # ---- rebalancing

    async def _keep_balanced(self) -> None:
        unbalanced_rounds = 0
        while True:
            self._look_again.clear()
            round_ended, self._next_round = self._next_round, asyncio.Event()
            try:
                balanced = await self._rebalance()
            finally:
                round_ended.set()
            # When something is missing look again soon, at first; then more and more seldom.
            unbalanced_rounds = 0 if balanced else unbalanced_rounds + 1
            pause = _REBALANCE_SECONDS
            if not balanced:
                pause = min(pause, _UNBALANCED_SECONDS * 2 ** min(unbalanced_rounds - 1, 10))
            try:
                async with asyncio.timeout(pause):
                    await self._look_again.wait()
                unbalanced_rounds = 0
            except TimeoutError:
                pass

    async def _rebalance(self) -> bool:
        """False when something could not be found out, or not be had, yet."""
        balanced = True
        for topic in list(self.subscriptions):
            balanced = await self._attempt(self._rebalance_topic(topic), topic) and balanced
        balanced = await self._attempt(self._give_up_unwanted(), "what is not subscribed") and balanced
        self.stats.rebalances += 1
        return balanced

    async def _attempt(self, step: Awaitable[bool], what: str) -> bool:
        """Whatever fails, the other topics have their turn, and this one again."""
        try:
            balanced = await step
        except OrbitError as error:
            logger.info("rebalancing %s of group %s has to wait: %s", what, self.group, error)
            return False
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            if what not in self._failing:
                logger.error("rebalancing %s of group %s fails: %r", what, self.group, error, exc_info=error)
            self._failing.add(what)
            return False
        self._failing.discard(what)
        return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        try:
            share = await self._share(topic)
            return share is not None and await self._own(topic, share)
        finally:
            self._latest.attempted(topic)

    async def _share(self, topic: str) -> list[QueueRef] | None:
        """The queues of a topic that are to be ours; None when that cannot be known now."""
        fixed = None if self._fixed is None else [queue for queue in self._fixed if queue.topic == topic]
        if fixed is not None and topic.startswith(LIGHT_PREFIX):
            return fixed
        route = self.cluster.known_route(topic) or await self.cluster.fetch_route(topic)
        if route is None:
            self._tell_of_missing(topic)
            return None
        if fixed is not None:
            return fixed
        if self.options.broadcasting:
            return list(route.readable)
        # Any broker of the topic knows the group; its master, if it has one.
        replicas = [addresses[min(addresses)] for addresses in route.brokers.values() if addresses]
        if not replicas:
            return None
        address = self._instance.config.randomness.choice(replicas)
        members = await questions.consumer_ids(self.cluster, address, self.group)
        if self._instance.client_id not in members:
            await self._instance.heartbeat_to(address)  # it does not know us: a restart, or a heartbeat that was lost
            members = await questions.consumer_ids(self.cluster, address, self.group)
        if self._instance.client_id not in members:
            # One that does not know the group, or fails, takes nothing away from us.
            raise RequestFailed(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"broker {address} does not count us among the members",
                hint="does the group exist there? brokers make it with autoCreateSubscriptionGroup=true",
            )
        await self._compare_subscriptions(topic, address, len(members))
        share = share_of(self.options.strategy, route.readable, members, self._instance.client_id)
        self._latest.shared(topic, route.readable, share)
        return share

    async def _own(self, topic: str, share: list[QueueRef]) -> bool:
        wanted = set(share)
        await self._give_up([queue for queue in self.queues if queue.topic == topic and queue not in wanted])
        new = [queue for queue in share if queue not in self.queues and queue not in self._leaving]
        locked_at = None
        if self._locks is not None and new:
            locked_at = asyncio.get_running_loop().time()
            self._locked.update(new)  # also what the broker locks without our hearing of it
            locked, _ = await self._locks.lock(new)
            new = [queue for queue in new if queue in locked]
        begun = await asyncio.gather(*(self._take_over(queue, locked_at) for queue in new), return_exceptions=True)
        for outcome in begun:  # after all of them: the next round must not find one still at it
            if isinstance(outcome, BaseException):
                raise outcome
        if self._locks is not None and topic not in self.subscriptions:  # any more
            unwanted = [queue for queue in new if queue not in self.queues]
            await self._locks.unlock(unwanted)
            self._locked.difference_update(unwanted)
        if new:
            if await self._offsets.save(new):
                self._latest.begun(queue for queue in new if queue in self.queues)
            logger.info("group %s consumes %d queues of %s", self.group, len(share), topic)
        return all(begun) and all(queue in self.queues for queue in share)

    async def _take_over(self, queue: QueueRef, locked_at: float | None) -> bool:
        self._offsets.forget(queue)  # somebody else may have moved it since
        since_ms = self._latest.since_ms(queue)
        try:
            offset = await first_offset(self.cluster, self._offsets, queue, self.options.start, since_ms)
        except OrbitError as error:
            logger.warning("the first offset of %s is not known yet: %s", queue, error)
            return False
        self._begin(queue, offset, locked_at)
        return True

    def _begin(self, queue: QueueRef, offset: int, locked_at: float | None) -> None:
        if queue.topic not in self.subscriptions:
            return
        public = QueueRef(unwrapped(self._instance.config.namespace, queue.topic), queue.broker_name, queue.queue_id)
        held = ProcessQueue(queue, public, offset, self.options.cache, self.figures.of(queue.topic))
        held.locked_at = locked_at
        if public in self._pauses:
            held.pause()
        self.queues[queue] = held
        # Committed even if nothing comes: a group that began at the end must not begin at a later end next time.
        self._offsets.advance(queue, offset)
        self._start_pull(held)

    def _start_pull(self, held: ProcessQueue) -> None:
        queue = held.queue
        first = self.subscriptions[queue.topic]  # holds on until the queue of a topic no longer wanted is given up

        def subscription() -> Subscription:
            return self.subscriptions.get(queue.topic, first)

        task = self._tasks.start(self._puller.run(held, subscription), f"pulling {queue.topic}/{queue.queue_id}")
        if task is not None:
            self._pulls[queue] = task
            task.add_done_callback(lambda done: self._pulls.pop(queue) if self._pulls.get(queue) is done else None)

    async def _moved(self, held: ProcessQueue, offset: int, is_reset: bool) -> None:
        """The offset does not exist on the broker, or an operator reset it: begin anew where the broker says.

        What is held from before there and not done with comes again, unless that is what the operator wants to skip.
        """
        if offset < held.next_offset and not is_reset:
            offset = min(offset, held.commit_offset)
        await self.restart(held.queue, offset)

    # ---- giving up

    async def _give_up_unwanted(self) -> bool:
        await self._give_up([queue for queue in self.queues if queue.topic not in self.subscriptions])
        return True

    async def _give_up(self, queues: Iterable[QueueRef]) -> None:
        going = [self.queues.pop(queue) for queue in queues]
        if not going:
            return
        logger.info("group %s gives up %d queues", self.group, len(going))
        for held in going:
            self._end_pull(held.queue)
        if self.options.orderly:
            for held in going:
                self._leaving.add(held.queue)
                self._tasks.start(self._hand_over(held), f"handing over {held.queue.topic}/{held.queue.queue_id}")
            return
        for held in going:
            held.drop()
        names = [held.queue for held in going]
        await self._offsets.save(names)
        for queue in names:
            self._offsets.forget(queue)

    async def _hand_over(self, held: ProcessQueue) -> None:
        """An orderly queue changes hands between two messages, never during one."""
        try:
            held.pending.clear()
            if _may_have_been_elsewhere(held):
                self._disown(held)
            await self._until_idle(held)
            held.drop()
            await self._commit_under_lock(held)
            self._offsets.forget(held.queue)
            if self._locks is not None:
                await self._locks.unlock([held.queue])
                self._locked.discard(held.queue)
        finally:
            self._leaving.discard(held.queue)

    async def _commit_under_lock(self, held: ProcessQueue) -> None:
        """The next owner reads on from what is committed, so the lock is kept for as long as that takes and we are trusted."""
        loop = asyncio.get_running_loop()
        while not await self._offsets.save([held.queue]):
            if held.locked_at is None or loop.time() - held.locked_at > TRUSTED_SECONDS:
                return
            await asyncio.sleep(_COMMIT_AGAIN_SECONDS)

    async def _until_idle(self, held: ProcessQueue) -> None:
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await held.idle.wait()
        except TimeoutError:
            logger.warning("%s goes on without its handler, which is still busy", held.queue)

    async def _renew_locks(self) -> None:
        if self._locks is None or not self.queues:
            return
        asked_at = asyncio.get_running_loop().time()
        locked, refused = await self._locks.lock(list(self.queues))
        handed_over = locked - self.queues.keys() - self._leaving  # while we asked
        if handed_over:
            await self._locks.unlock(handed_over)
        asked_for = [held for held in self.queues.values() if held.locked_at is not None and held.locked_at <= asked_at]
        await asyncio.gather(*(self._go_on(held, asked_at) for held in asked_for if held.queue in locked))
        for held in asked_for:
            if held.queue in refused:
                await self._begin_again(held)

    async def _go_on(self, held: ProcessQueue, asked_at: float) -> None:
        """The lock is ours, as it was; or again."""
        if _may_have_been_elsewhere(held):
            try:
                committed = await self._offsets.stored(held.queue)
            except OrbitError as error:
                logger.warning("how far group %s came in %s is not known yet: %s", self.group, held.queue, error)
                return
            if committed is not None and committed > held.commit_offset:
                await self._begin_again(held)
                return
            if not held.dropped:
                self._offsets.advance(held.queue, held.commit_offset)
        held.locked_at = asked_at
        if self._lock_renewed is not None:
            self._lock_renewed(held)

    async def _begin_again(self, held: ProcessQueue) -> None:
        """Another member had the queue, or has it: once it can be locked again it is read from where that one came to."""
        if self.queues.get(held.queue) is not held:
            return
        logger.warning("%s was locked for another member of group %s: it is read afresh", held.queue, self.group)
        self._disown(held)
        await self._give_up([held.queue])
        self.rebalance_soon()

    def _disown(self, held: ProcessQueue) -> None:
        """How its messages end does not count any more."""
        held.drop()
        self._offsets.forget(held.queue)

    # ---- telling

    async def _introduce(self) -> None:
        try:
            await self._instance.heartbeat()
        except OrbitError as error:
            logger.warning("not every broker knows group %s yet: %s", self.group, error)

    def _tell_of_missing(self, topic: str) -> None:
        """Not at the first look: a topic that was just made needs a moment to reach the name servers."""
        self._missed[topic] = self._missed.get(topic, 0) + 1
        if self._missed[topic] == 2 and not topic.startswith(RETRY_PREFIX):
            logger.warning("topic %s does not exist yet: group %s waits for it", topic, self.group)

    async def _compare_subscriptions(self, topic: str, address: Address, members: int) -> None:
        """Members that subscribe to different things take queues from each other that they never read: say so."""
        mine = self.subscriptions.get(topic)
        if members < 2 or mine is None or topic in self._warned_of or topic.startswith(RETRY_PREFIX):
            return
        try:
            known = (await questions.group_connections(self.cluster, address, self.group)).subscription_table
        except OrbitError:
            return  # a broker that does not tell is no reason to worry anybody
        theirs = known.get(topic)
        if theirs is None or theirs.sub_string != mine.expression:
            self._warned_of.add(topic)
            logger.warning(
                "members of group %s disagree about topic %s: here %r, elsewhere %s. Messages will go unread: let all "
                "members subscribe to the same topics with the same filters, or use another group",
                self.group, topic, mine.expression, repr(theirs.sub_string) if theirs else "not subscribed",
            )  # fmt: skip


def _may_have_been_elsewhere(held: ProcessQueue) -> bool:
    """Whether it was locked so long ago that its broker may have given it to another member since."""
    return held.locked_at is not None and asyncio.get_running_loop().time() - held.locked_at > KEPT_SECONDS
