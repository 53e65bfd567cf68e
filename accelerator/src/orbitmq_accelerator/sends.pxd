"""What other modules may use of the sends: a run that is opened, given frames of one connection after the other, and closed."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from orbitmq_accelerator.command_header cimport Text
from orbitmq_accelerator.ends cimport SwiftEnds
from orbitmq_accelerator.record cimport Record
from orbitmq_accelerator.send_header cimport Send
from orbitmq_accelerator.signatures cimport SHA1_LANES, Claims, KeyStates
from orbitmq_accelerator.waiting cimport Wish


cdef struct Frame:
    Py_ssize_t size  # all of it
    uint32_t codec
    const uint8_t *header
    Py_ssize_t header_bytes
    const uint8_t *body
    Py_ssize_t body_bytes


# What had been taken before a request.
cdef struct Mark:
    Py_ssize_t taken, answered, frames, appended, batches
    int64_t at, topic_records, topic_record_bytes


cdef class Key:
    cdef KeyStates states
    cdef bytes user
    cdef str topic


cdef class Place:
    cdef str topic
    cdef bytes field
    cdef int64_t magic
    cdef list queue_keys
    cdef int64_t records, record_bytes  # that came in this run


cdef class SwiftSends:
    cdef object sending, store, log, durability, receipts, now_ms, served, served_batch, note_record
    cdef object end_transaction  # an express handler, or None where decisions go the ordinary way
    cdef SwiftEnds ends  # of the usual ones of them
    cdef object acks  # a swift handler of them and of pops, or None
    cdef dict next_offsets
    cdef bint notes_batches  # as one entry each

    # For what has to wait.
    cdef Place delayed, timers, halves
    cdef object terms  # what the numbers below are of
    cdef int64_t delay_levels, longest_timer_ms, timer_precision_ms
    cdef bint takes_halves, takes_timers, limits_moments
    cdef bytes broker_name

    cdef object door  # an ExpressDoor, or None where sends need no signature
    cdef object generation  # of the door, that the keys belong to
    cdef dict keys  # by user, topic and source

    # Of the run that is open.
    cdef Py_buffer view
    cdef bint immediate  # receipts do not wait for disk or slaves
    cdef uint8_t *memory  # of the log file that is written
    cdef int64_t memory_start, prepared_to, at, stored_at_ms, most_body
    cdef object stored_at  # the same time
    cdef Py_ssize_t appended, batches  # requests
    cdef Py_ssize_t waiting  # records to be indexed before it
    cdef bytes store_host, suffix
    cdef bytes before_id, host_hex, behind_key, behind_opaque  # of receipts
    cdef bint knows_terms
    cdef object topic  # a PlainTopic
    cdef list queue_keys
    cdef bytes topic_field
    cdef int64_t topic_magic, topic_records, topic_record_bytes
    cdef bytes topic_name
    cdef str topic_text

    # Of the connection whose frames are being taken.
    cdef bytes born_host
    cdef object source
    cdef Key key  # of the message before
    cdef Py_ssize_t taken, frames  # bytes at the front, and how many requests they were
    cdef int64_t code, first_code  # of the request that is being taken, and of the first
    cdef uint8_t *answers
    cdef Py_ssize_t answers_room, answered
    cdef list unstored  # batches that were put together: what the indexes are told of each, and what its queue's next offset was
    cdef Mark before_unstored

    # Of the requests that were read: one where nothing has to be signed, several where signatures are checked.
    cdef Send sends_ahead[SHA1_LANES]
    cdef int ahead, next_ahead  # how many of them are rightly signed, and which of those is to be taken next
    cdef bint is_end_ahead  # behind them is one that is not
    cdef uint8_t *properties
    cdef Py_ssize_t properties_room, properties_used
    cdef uint8_t *content  # that is signed
    cdef Claims claims

    cdef bint open_run(self) except -1
    cdef bint has_room(self) except -1
    cdef Py_ssize_t take_frames(self, connection, bytes born_host, const uint8_t *start, Py_ssize_t length) except -1
    cdef int close_run(self) except -1
    cdef bytes receipts_so_far(self)
    cdef int pay_later(self, connection) except -1

    cdef Send *next_send(self, const Frame *frame, const uint8_t *end) except? NULL
    cdef int look_ahead(self, Frame frame, const uint8_t *end) except -1
    cdef bint read_send(self, const Frame *frame, Send *send) noexcept
    cdef bint may_send(self, Send *send) except -1
    cdef bint take(self, Send *send) except -1
    cdef bint choose_topic(self, Send *send) except -1
    cdef int count_topic(self) except -1
    cdef bint ask_door(self) except -1
    cdef bint choose_key(self, Text user) except -1
    cdef bint take_waiting(
        self, Send *send, Record *record, const uint8_t *unique_key, Py_ssize_t key_bytes
    ) except -1
    cdef int begin_transaction(self, const Record *half) except -1
    cdef int learn_terms(self) except -1
    cdef int64_t due_ms(self, const Wish *wish) noexcept nogil
    cdef Py_ssize_t write_handle(
        self, uint8_t *handle, int64_t at_ms, const uint8_t *unique_key, Py_ssize_t key_bytes
    ) noexcept
    cdef int say_goal(self, Send *send, int64_t due_ms, const uint8_t *transaction, Py_ssize_t transaction_bytes) except -1
    cdef bint find_field(self, Place place) except -1
    cdef int count_place(self, Place place) except -1
    cdef bint take_end(self, connection, const uint8_t *header, Py_ssize_t header_bytes) except -1
    cdef bint commit_half(self, const uint8_t *header, Py_ssize_t header_bytes) except -1
    cdef int take_log_back(self) except -1
    cdef bint take_batch(self, Send *send, const uint8_t *unique_key, Py_ssize_t key_bytes) except -1
    cdef int write_members(self, const Send *send, Record *record, tuple queue, uint8_t *out, Py_ssize_t room) except -1
    cdef int put_together(self, const Send *send, Record *record, tuple queue, Py_ssize_t total, Py_ssize_t answered) except -1
    cdef bint store_batches(self) except -1
    cdef int take_back(self, list unstored) except -1
    cdef int note_batch(self, tuple queue, int64_t at, Py_ssize_t total, int64_t first, int64_t sys_flag, copy) except -1
    cdef int write_in_place(self, const Send *send, Record *record, tuple queue, Py_ssize_t total) except -1
    cdef Py_ssize_t check_members(self, const Send *send, const uint8_t *at, Py_ssize_t length, Py_ssize_t *total) except -1
    cdef void begin_record(self, Record *record, const Send *send) noexcept
    cdef bint place_record(self, Record *record, const Send *send, bytes field, int64_t magic) except -1
    cdef bint make_log_room(self, Py_ssize_t size) except -1
    cdef int64_t next_offset(self, tuple queue) except -1
    cdef int add_record(self, const Record *record, tuple queue) except -1
    cdef uint8_t *write(self, const Record *record) noexcept
    cdef int note(self, const Record *record, tuple queue, const uint8_t *properties) except -1
    cdef int write_receipt(
        self, const Send *send, const Record *record, const uint8_t *unique_key, Py_ssize_t key_bytes, const uint8_t *handle,
        Py_ssize_t handle_bytes,
    ) except -1
    cdef int write_batch_receipt(
        self, const Send *send, int64_t first, Py_ssize_t members, const uint8_t *body, Py_ssize_t body_bytes,
        const uint8_t *unique_key, Py_ssize_t key_bytes,
    ) except -1
    cdef uint8_t *begin_receipt(self, Py_ssize_t own_bytes) except NULL
    cdef int end_receipt(
        self, uint8_t *frame, uint8_t *out, const Send *send, int64_t queue_offset, const uint8_t *unique_key,
        Py_ssize_t key_bytes, const uint8_t *handle, Py_ssize_t handle_bytes,
    ) except -1
    cdef int make_room(self, Py_ssize_t more) except -1


cdef bytes host_of(connection)
cdef bint begins_with_a_send(const uint8_t *data, Py_ssize_t length) noexcept nogil
