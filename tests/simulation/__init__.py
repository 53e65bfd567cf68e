"""A cluster in one thread, on invented time: the real broker, store, replication and client over a network and disks in memory.

loop.py       the event loop: virtual time, a lane of callbacks for each process, chosen by the seed
network.py    connections in memory: delays, cuts, partitions, half-open ends
disk.py       files in memory: a kill keeps what was written, a power cut what was synced
machine.py    a computer: its disk, its clock, its address, and the process that runs on it or not
cluster.py    name servers, a master, slaves, and how each is started
workload.py   producers and consumers, who write down in the ledger what they were told
faults.py     what goes wrong, and when
checks.py     the ledger against what the cluster still has
schedule.py   one run from its seed to its verdict
bugs.py       switches that break the code, to see that the checks notice
__main__.py   `python -m tests.simulation`: many seeds, or one with its trace
"""
