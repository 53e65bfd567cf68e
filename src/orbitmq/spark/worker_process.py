"""A worker's process made ready for the many tasks that it will run.

Between two tasks Spark looks for garbage among all objects of the process. Nearly all of them are modules and their contents, hundreds of
thousands that never are garbage: put aside once, they are not looked at again, and a task of a few milliseconds is not followed by
many more. Large buffers are kept for the next task, too (buffers.py).
"""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext

from orbitmq.spark.buffers import keep_large_buffers


@cache
def settle() -> None:
    """For the rest of this process. In a program of the user's, whose garbage is its own business, only buffers are kept."""
    keep_large_buffers()
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
