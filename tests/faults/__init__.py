"""The proving ground: a cluster of real processes, a supervisor that breaks things, ledgers that it cannot break, and checkers.

machine.py    what the supervisor can do to one broker's machine: its disk and its clock (a test build of the broker)
proxy.py      what it can do to its network
cluster.py    name servers, a master and its slaves as processes
plan.py       which fault when, from a seed
faults.py     carrying a plan out
losses.py     when the mode of a cluster may lose what it acknowledged
orders.py     plain messages: what was sent and acknowledged, what is read, and what must hold of both
progress.py   committed offsets, leases.py leases, library.py the client library: the same for those
life.py       one cluster from its start through all faults to the last check
report.py     what was seen, as Markdown and as a picture
soak.py       many lives: `make soak MINUTES=60`
"""
