"""The busiest loops of the OrbitMQ broker, and of those who read and write it with Spark, compiled.

    sends      the usual sends of one read, from frames to receipts, signatures included
    refusals   of sends that are too many, from frames to answers
    acks       those of one read, each lease's together
    pops       the usual ones, answered from where their records lie in the log
    leases     what is written and remembered of both
    ends       of transactions, committed between half messages
    pulls      the usual pulls of one read, answered from where their records lie in the log
    lanes      the entries of queues that are pulled from
    sockets    the connections that send and pull, read many at a time
    pages      of the log, had ready before they are stored to
    indexes    entering records into their queues and into the key index
    reads      gathering the records that other pulls are answered with
    copies     sending on what has waited: delays, timers, transactions
    timers     putting messages on the timer wheel, and finding those that are due
    columns    records as columns, for Spark's workers
    members    rows as members of batches, for Spark's workers

Each does what a function of `orbitmq`, or the event loop, does, byte for byte, and leaves whatever is unusual to it. `orbitmq.accelerated` decides
whether they are used.
"""

INTERFACE = 21  # as in `orbitmq.accelerated`
