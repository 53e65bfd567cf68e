"""The sockets of those who send and pull, read many at a time: what the event loop and `Connection.data_received` do for one of them.

    event loop ── one descriptor is ready ──> turn ── for each socket that is ──> recv ─┬─> the run of sends ─> send
                                                                                        ├─> sends that are refused ─> send
                                                                                        ├─> its pulls ─> sendmsg, from the log
                                                                                        ├─> its pops and acks ─> send
                                                                                        └─ what is left ─> Connection.data_received

A connection is seated here when a swift handler has taken a read of it, and is given back to the event loop when it ends, fails or is
to be paused. Its transport stays its owner: it still writes whatever cannot be written at once.

The sockets stand in an epoll set of their own, which is one descriptor to the event loop. All sends of a turn are one run.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strerror

from orbitmq_accelerator.acks cimport SwiftAcks, begins_with_a_lease, has_a_pop
from orbitmq_accelerator.byte_order cimport load32
from orbitmq_accelerator.pulls cimport SwiftPulls, begins_with_a_pull, iovec
from orbitmq_accelerator.refusals cimport RefusedSends
from orbitmq_accelerator.sends cimport SwiftSends, begins_with_a_send, host_of

from orbitmq.transport.congestion import LARGE_READ_BYTES

cdef Py_ssize_t LARGE_READ = LARGE_READ_BYTES

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    enum:
        EPOLLIN
        EPOLLERR
        EPOLLHUP
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int descriptor, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout_ms)

cdef extern from "sys/socket.h" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recv(int descriptor, void *data, size_t length, int flags)
    ssize_t send(int descriptor, const void *data, size_t length, int flags)
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags)

cdef extern from "unistd.h" nogil:
    int close(int descriptor)

cdef enum:
    READ_BYTES = 256 << 10  # as uvloop reads
    MOST_HELD = 128 << 10  # of a frame that has begun; one that is larger is gathered piece by piece
    PREFIX_BYTES = 8  # of a frame
    MOST_READS = 64  # in a turn; then others have theirs
    MOST_OWED = 32  # short answers that leave together
    OWED_BYTES = 2 << 10  # of a short one: a receipt of a batch has the ids of all members
    MOST_WAITING = 64  # records, to be indexed behind acks


cdef class Seat:
    """One connection that is read here."""

    cdef object connection, write, unsent
    cdef bytes born_host
    cdef bint is_mid_frame  # its decoder has to see what comes next, or that is not known yet

    def __init__(self, connection, transport, bytes born_host):
        self.connection = connection
        self.write = transport.write
        self.unsent = transport.get_write_buffer_size
        self.born_host = born_host
        self.is_mid_frame = True


cdef struct Owed:
    int descriptor
    Py_ssize_t size


cdef class SwiftReader:
    """See orbitmq/transport/express.py."""

    cdef SwiftSends sends
    cdef SwiftPulls pulls  # or None where pulls go the ordinary way
    cdef SwiftAcks acks  # and pops; or None
    cdef object times, congestion, loop
    cdef dict seats  # by descriptor
    cdef int epoll
    cdef uint8_t *room
    cdef uint8_t *read  # where reads begin; before it is room for what the read before left of a frame
    cdef bint is_open  # a run

    # Answers that leave soon, of connections that are seated. Who sleeps until it is answered is woken by the first of them, which takes the
    # system as long as the sending; it is awake still when the others come.
    cdef list owed_seats
    cdef Owed owed[MOST_OWED]
    cdef int owed_count
    cdef uint8_t owed_answers[MOST_OWED][OWED_BYTES]

    # Of this turn.
    cdef bint is_decided  # whether the sends of this read are refused: nobody asks again for the rest of it
    cdef object refusing  # while there is more than can be served, who says which reads are refused; else None
    cdef RefusedSends refused
    cdef Py_ssize_t taken  # bytes, and held; what is given to a connection to answer is counted there

    def __cinit__(self):
        self.epoll = -1
        self.room = <uint8_t *>malloc(MOST_HELD + READ_BYTES)
        if self.room == NULL:
            raise MemoryError
        self.read = self.room + MOST_HELD

    def __dealloc__(self):
        free(self.room)
        if self.epoll >= 0:
            close(self.epoll)

    def __init__(self, SwiftSends sends, SwiftPulls pulls, times, congestion):
        self.sends = sends
        self.pulls = pulls
        self.acks = sends.acks
        self.times = times
        self.congestion = congestion
        self.seats = {}
        self.owed_seats = []

    def start(self, loop):
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise system_error()
        self.loop = loop
        loop.add_reader(self.epoll, self.turn)

    def stop(self):
        if self.epoll >= 0:
            self.loop.remove_reader(self.epoll)
            close(self.epoll)
            self.epoll = -1
        self.seats.clear()

    def take(self, connection, transport, int descriptor):
        """Whether it is read here from now on."""
        cdef epoll_event event
        born_host = host_of(connection)
        if self.epoll < 0 or born_host is None:
            return False
        memset(&event, 0, sizeof(event))
        event.events = EPOLLIN
        event.data.fd = descriptor
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, descriptor, &event) != 0:
            return False
        self.seats[descriptor] = Seat(connection, transport, born_host)
        return True

    def give_back(self, connection, int descriptor):
        """It is no longer read here. The descriptor may be another's by now: then that one stays."""
        cdef epoll_event event
        self.send_owed()
        seat = self.seats.get(descriptor)
        if seat is None or (<Seat>seat).connection is not connection:
            return
        del self.seats[descriptor]
        # One that is closed has left the set by itself.
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, descriptor, &event)

    def turn(self):
        """Serve every socket that is ready; those that become so meanwhile too, up to a point."""
        cdef epoll_event events[MOST_READS]
        cdef int ready, number, served = 0
        now = self.loop.time()
        self.taken = 0
        if self.pulls is not None:
            self.pulls.begin_turn()
        self.refusing = self.congestion.refuse
        self.refused = None if self.refusing is None else <RefusedSends?>self.refusing.sends
        try:
            while True:
                ready = epoll_wait(self.epoll, events, MOST_READS - served, 0)
                if ready < 0 and errno != EINTR:
                    raise system_error()
                for number in range(ready):
                    self.serve_safely(events[number].data.fd, events[number].events, now)
                self.send_owed()
                served += ready
                # One alone will hardly have sent again by now.
                if ready < 2 or served >= MOST_READS:
                    break
        finally:
            self.send_owed()
            self.close_run()
            if self.pulls is not None:
                self.pulls.settle_turn()
            self.congestion.read_bytes += self.taken
        if self.times.unsettled:
            self.times.settle(self.loop.time() - now)

    cdef int serve_safely(self, int descriptor, uint32_t events, now) except -1:
        """An error ends the connection whose it is, as it does where an event loop calls `data_received`."""
        cdef Seat seat = self.seats.get(descriptor)
        if seat is None:  # it left during this turn
            return 0
        try:
            self.serve(seat, descriptor, events, now)
        except Exception as error:
            self.close_run()
            self.give_up(seat, "reading a connection failed", error)
        return 0

    cdef int give_up(self, Seat seat, str message, error) except -1:
        self.loop.call_exception_handler({"message": message, "exception": error, "protocol": seat.connection})
        seat.connection.abort()
        return 0

    cdef int serve(self, Seat seat, int descriptor, uint32_t events, now) except -1:
        cdef ssize_t length
        cdef Py_ssize_t taken = 0, held = 0
        cdef const uint8_t *data = self.read
        connection = seat.connection
        length = -1 if events & (EPOLLERR | EPOLLHUP) else recv(descriptor, self.read, READ_BYTES, MSG_DONTWAIT)
        if length <= 0:
            if events & (EPOLLERR | EPOLLHUP) or length == 0 or (errno != EAGAIN and errno != EINTR):
                connection.read_by_loop()  # which knows what to make of an end, and of an error
            return 0
        connection.last_activity = now
        if length >= LARGE_READ:
            self.congestion.crowded[connection] = None
        if connection.meter is not None:
            self.give(seat, PyBytes_FromStringAndSize(<const char *>data, length))
            seat.is_mid_frame = connection.is_mid_frame
            return 0
        self.taken += length
        self.is_decided = False
        if seat.is_mid_frame:
            held = self.put_before(seat, length)
            data -= held
            length += held
        if not seat.is_mid_frame:
            taken = self.take_requests(seat, descriptor, data, length)
        if taken < length:
            self.give_rest(seat, data + taken, length - taken)
        return 0

    cdef Py_ssize_t put_before(self, Seat seat, Py_ssize_t length) except -1:
        """A frame that had begun, before the read that ends it: how many bytes. One that does not end yet stays where it is."""
        cdef Py_ssize_t held
        beginning = seat.connection.beginning
        if beginning is None:
            return 0
        held = PyByteArray_GET_SIZE(beginning)
        if held:
            if held > MOST_HELD or held + length < needed_bytes(<const uint8_t *>PyByteArray_AS_STRING(beginning), held):
                return 0
            memcpy(self.read - held, PyByteArray_AS_STRING(beginning), held)
            seat.connection.forget_beginning()
        seat.is_mid_frame = False
        return held

    cdef Py_ssize_t take_requests(self, Seat seat, int descriptor, const uint8_t *data, Py_ssize_t length) except -1:
        """How many bytes at the front were usual ones, or refused, which are answered."""
        cdef Py_ssize_t taken = 0
        if begins_with_a_send(data, length):
            self.is_decided = self.refusing is not None
            if self.is_decided and not self.refusing.takes_read():
                taken = self.refused.take_frames(data, length)
                if taken:
                    self.refusing.count(self.refused.frames)
                    self.write(seat, descriptor, self.refused.answers, self.refused.answered)
            elif self.open_run():
                taken = self.sends.take_frames(seat.connection, seat.born_host, data, length)
                if taken:
                    self.answer(seat, descriptor)
        elif self.pulls is not None and begins_with_a_pull(data, length):
            self.show_what_was_acknowledged()
            taken = self.serve_pulls(seat, descriptor, data, length)
        elif self.acks is not None and begins_with_a_lease(data, length):
            self.close_run()
            # An ack looks at its lease alone, which is of messages indexed before; what this turn took may wait. But not so many that storing
            # the ack would index them, and fail with them.
            if has_a_pop(data, length) or len(self.sends.log.recent) > MOST_WAITING:
                self.show_what_was_acknowledged()
            taken = self.acks.take_frames(data, length)
            if taken:
                self.write(seat, descriptor, self.acks.answers.data, self.acks.answers.length)
        return taken

    cdef int give(self, Seat seat, bytes data) except -1:
        self.send_owed()
        self.show_what_was_acknowledged()
        if self.pulls is not None:
            self.pulls.settle_turn()  # who asks now may ask for that
        if self.is_decided:
            self.congestion.refuse = None
        try:
            seat.connection.data_received(data)
        finally:
            if self.is_decided:
                self.congestion.refuse = self.refusing
            if self.pulls is not None:
                self.pulls.begin_turn()
        return 0

    cdef int give_rest(self, Seat seat, const uint8_t *data, Py_ssize_t length) except -1:
        """To the connection. Where no frame ends there is nothing to answer, and no time to lose."""
        rest = PyBytes_FromStringAndSize(<const char *>data, length)
        if is_unfinished(seat, data, length):
            seat.connection.hold(rest)
        else:
            self.taken -= length  # it is counted there
            self.give(seat, rest)
        seat.is_mid_frame = seat.connection.is_mid_frame
        return 0

    cdef int answer(self, Seat seat, int descriptor) except -1:
        cdef SwiftSends sends = self.sends
        if not sends.immediate:
            sends.pay_later(seat.connection)
            seat.connection.pause_if_full()
        elif sends.answered:
            self.write(seat, descriptor, sends.answers, sends.answered)
        return 0

    cdef int write(self, Seat seat, int descriptor, const uint8_t *answers, Py_ssize_t size) except -1:
        """At once if it is long, else with those of others."""
        if size > OWED_BYTES:
            return self.send_now(seat, descriptor, answers, size)
        memcpy(self.owed_answers[self.owed_count], answers, size)
        self.owed[self.owed_count] = Owed(descriptor, size)
        self.owed_seats.append(seat)
        self.owed_count += 1
        if self.owed_count == MOST_OWED:
            self.send_owed()
        return 0

    cdef int send_owed(self) except -1:
        """Nobody is given back before this, so each descriptor is still its seat's. What fails for one is no matter of the others."""
        cdef int number, count = self.owed_count
        cdef Seat seat
        if not count:
            return 0
        seats, self.owed_seats, self.owed_count = self.owed_seats, [], 0
        for number in range(count):
            seat = <Seat>seats[number]
            try:
                self.send_now(seat, self.owed[number].descriptor, self.owed_answers[number], self.owed[number].size)
            except Exception as error:
                self.give_up(seat, "answering a connection failed", error)
        return 0

    cdef int send_now(self, Seat seat, int descriptor, const uint8_t *answers, Py_ssize_t size) except -1:
        cdef ssize_t sent = 0
        if seat.unsent() == 0:
            sent = send(descriptor, answers, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == size:
                return 0
            if sent < 0:  # the transport will find out why
                sent = 0
        seat.write(PyBytes_FromStringAndSize(<const char *>answers + sent, size - sent))
        return 0

    cdef Py_ssize_t serve_pulls(self, Seat seat, int descriptor, const uint8_t *data, Py_ssize_t length) except -1:
        """How many bytes they were."""
        cdef SwiftPulls pulls = self.pulls
        cdef Py_ssize_t more = 1, taken = 0
        cdef ssize_t sent
        cdef msghdr message
        self.send_owed()
        while more and taken < length:
            try:
                more = pulls.take_frames(seat.connection, data + taken, length - taken)
                taken += more
                if not pulls.size:  # all of them wait
                    continue
                sent = 0
                if seat.unsent() == 0:
                    memset(&message, 0, sizeof(message))
                    message.msg_iov = pulls.pieces
                    message.msg_iovlen = pulls.piece_count
                    sent = sendmsg(descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                    if sent < 0:  # the transport will find out why
                        sent = 0
                if sent < pulls.size:
                    seat.write(pulls.joined(sent))
                    break  # it reads more slowly than it asks
            finally:
                pulls.release()
        return taken

    cdef int show_what_was_acknowledged(self) except -1:
        """Who asks now may have heard of what this turn took, and must find it: the event loop would index it before the next read."""
        self.close_run()
        if self.sends.log.recent:
            try:
                self.sends.store.dispatch()
            except Exception as error:  # no matter of the connection that is read now
                self.loop.call_exception_handler({"message": "indexing what was sent failed", "exception": error})
        return 0

    cdef bint open_run(self) except -1:
        if self.is_open:
            return self.sends.has_room()
        self.is_open = self.sends.open_run()
        return self.is_open

    cdef int close_run(self) except -1:
        if self.is_open:
            self.is_open = False
            self.sends.close_run()
        return 0


cdef bint is_unfinished(Seat seat, const uint8_t *data, Py_ssize_t length) except -1:
    """Whether no frame ends in this."""
    if not seat.is_mid_frame:
        return length < needed_bytes(data, length)
    beginning = seat.connection.beginning
    if not beginning:
        return False
    return PyByteArray_GET_SIZE(beginning) + length < needed_bytes(
        <const uint8_t *>PyByteArray_AS_STRING(beginning), PyByteArray_GET_SIZE(beginning)
    )


cdef inline int64_t needed_bytes(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    """For the frame that begins there; of less than its prefix, that."""
    return <int64_t>load32(data) + 4 if length >= PREFIX_BYTES else PREFIX_BYTES


cdef object system_error():
    return OSError(errno, strerror(errno).decode())
