"""Messages that a query should have read and cannot: an error or a warning, as failOnDataLoss says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError

if TYPE_CHECKING:
    from orbitmq.spark.source_options import SourceOptions

logger = logging.getLogger(__name__)

_HINT: Final = "retention overtook the query, or the topic was made anew; failOnDataLoss=false goes on without them"


def report_loss(options: SourceOptions, what: str, hint: str = _HINT) -> None:
    if options.fail_on_data_loss:
        raise StorageError(what, hint=hint)
    logger.warning("%s; going on without them", what)
