"""SQL92 filters over message properties: `price > 10 AND region IN ('eu', 'us')`. Java: the `filter` module"""

from orbitmq.broker.sql_filter.filter import SqlFilter, compile_filter

__all__ = ["SqlFilter", "compile_filter"]
