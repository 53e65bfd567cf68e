"""A folder as Spark's own writers see it: by Hadoop's file systems, from the driver's JVM, whatever the address is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFolder:
    def __init__(self, spark: SparkSession, address: str) -> None:
        internals: Any = spark
        self._new_path = internals._jvm.org.apache.hadoop.fs.Path
        self._path = self._new_path(address)
        self._files = self._path.getFileSystem(internals._jsparkSession.sessionState().newHadoopConf())

    def names(self) -> list[str]:
        """Of what is in it; none when it is not there."""
        if not self._files.exists(self._path):
            return []
        return [found.getPath().getName() for found in self._files.listStatus(self._path)]

    def mark(self, name: str) -> None:
        """An empty file of this name, and the folder if need be."""
        self._files.create(self._new_path(self._path, name)).close()
