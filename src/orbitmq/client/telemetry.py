"""OpenTelemetry: spans around sends and handlers, joined across processes by message properties.

    telemetry = OpenTelemetry()
    client.producer(group="orders", hooks=[telemetry]); client.consumer("Orders", group="billing", hooks=[telemetry], ...)

The context travels in the properties that the configured propagator writes (`traceparent` by default), which other languages'
instrumentations of RocketMQ read as well. Needs the package opentelemetry-api.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.hooks import ConsumeHook, Consuming, SendHook, Sending
from orbitmq.errors import ConfigError
from orbitmq.message import properties as names

if TYPE_CHECKING:
    from orbitmq.client.received import ReceivedMessage

_SYSTEM: Final = {"messaging.system": "rocketmq"}
_SPANS: Final = "telemetry spans"


class OpenTelemetry(SendHook, ConsumeHook):
    """One hook for producers and consumers."""

    def __init__(self) -> None:
        try:
            self._trace: Any = import_module("opentelemetry.trace")
            self._propagate: Any = import_module("opentelemetry.propagate")
        except ImportError as error:
            raise ConfigError(
                "OpenTelemetry is not installed", hint="pip install opentelemetry-api, and an SDK to see anything"
            ) from error
        self._tracer: Any = self._trace.get_tracer("orbitmq")

    def before_send(self, sending: Sending) -> None:
        span = self._tracer.start_span(
            f"{sending.topic} publish",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **_SYSTEM,
                "messaging.destination.name": sending.topic,
                "messaging.operation.type": "publish",
                "messaging.message.id": sending.properties[names.UNIQUE_KEY],
                "messaging.message.body.size": len(sending.body),
                "messaging.rocketmq.client_group": sending.group,
            },
        )
        self._propagate.inject(sending.properties, context=self._trace.set_span_in_context(span))
        sending.context[_SPANS] = span

    def after_send(self, sending: Sending) -> None:
        span: Any = sending.context.pop(_SPANS, None)
        if span is not None:  # the hook may have been added meanwhile
            _end(span, self._trace, sending.error)

    def before_consume(self, consuming: Consuming) -> None:
        consuming.context[_SPANS] = [self._consume_span(consuming, message) for message in consuming.messages]

    def after_consume(self, consuming: Consuming) -> None:
        spans: Any = consuming.context.pop(_SPANS, [])
        for span in spans:
            _end(span, self._trace, consuming.error)

    def _consume_span(self, consuming: Consuming, message: ReceivedMessage) -> Any:
        return self._tracer.start_span(
            f"{message.topic} process",
            context=self._propagate.extract(message.properties),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                **_SYSTEM,
                "messaging.destination.name": message.topic,
                "messaging.operation.type": "process",
                "messaging.message.id": message.message_id,
                "messaging.rocketmq.client_group": consuming.group,
                "messaging.rocketmq.message.delivery_attempt": message.attempt,
            },
        )


def _end(span: Any, trace: Any, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
    span.end()
