"""Work spread over Spark's workers, one task a piece, with progress: for what the workers finish themselves.

Only small results come back. The tasks are functions of this package and values that pickle: executors need the package, and
nothing else of the driver's files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import InheritableThread

from orbitmq.spark.failures import plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_LOOK_SECONDS: Final = 0.25


def run_tasks(
    spark: SparkSession,
    name: str,
    tasks: Sequence[T],
    work: Callable[[T], R],
    progress: Callable[[int, int], None] | None = None,
) -> list[R]:
    """The results in the order of the tasks. `progress` hears how many are done, and of how many."""
    if not tasks:
        return []
    context = spark.sparkContext
    outcome: dict[str, Any] = {}

    def run() -> None:
        context.setJobGroup(name, name, interruptOnCancel=True)
        try:
            outcome["results"] = context.parallelize(tasks, len(tasks)).map(plain_errors(work)).collect()
        except BaseException as error:  # handed to the caller's thread below
            outcome["error"] = error

    job = InheritableThread(target=run, name=f"orbitmq-{name}", daemon=True)
    job.start()
    try:
        while job.is_alive():
            job.join(_LOOK_SECONDS)
            if progress is not None:
                progress(_done(context, name, len(tasks)), len(tasks))
    except BaseException:
        context.cancelJobGroup(name)
        job.join()
        raise
    if "error" in outcome:
        raise outcome["error"]
    if progress is not None:
        progress(len(tasks), len(tasks))
    results: list[R] = outcome["results"]
    return results


def _done(context: Any, group: str, total: int) -> int:
    tracker = context.statusTracker()
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None and job.status == "RUNNING" else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                return min(total, int(stage.numCompletedTasks))
    return 0
