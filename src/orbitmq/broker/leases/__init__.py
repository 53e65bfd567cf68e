"""Leases: messages handed out for a while, to be acknowledged, extended, or handed out again. Java calls it POP.

popping      which messages a pop takes, and what is remembered of it
checkpoints  what is remembered, as Java's broker writes it
lease_log    where it is kept: the revive topic, by way of the timer
open_leases  the same in memory, while it lasts
reviving     what nobody acknowledged goes to a retry topic, or to the dead letters
settling     acks and extensions
ordered      leases of whole queues, one batch at a time
waiting      pops that found nothing
"""
