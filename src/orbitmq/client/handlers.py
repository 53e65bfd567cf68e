"""What a handler wants, told by the annotation of its first parameter: the message itself, or its body as a value.

async def on_order(message: ReceivedMessage)    the message
async def on_order(order: Order)                its body, by the codec
async def on_orders(orders: list[Order])        bodies of a batch
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orbitmq.client.workers import function_behind, is_async
from orbitmq.errors import ConfigError
from orbitmq.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.client.codecs import Codec
    from orbitmq.client.received import ReceivedMessage


F = TypeVar("F", bound="Callable[[Any], Any]")


def adapted(handler: F, codec: Codec, *, batches: bool = False) -> F:
    """A handler that takes messages, made of one that may want values."""
    _check_takes_one(handler)
    wanted = wanted_by(handler, batches=batches)
    if wanted is None or wanted is Any or (isinstance(wanted, type) and issubclass(wanted, Message)):
        return handler

    def value(message: ReceivedMessage) -> Any:
        return codec.decode(message.body, wanted)

    def convert(given: Any) -> Any:
        return [value(message) for message in given] if batches else value(given)

    return cast("F", _composed(handler, convert))


def _check_takes_one(handler: Callable[[Any], Any]) -> None:
    hint = "give a function of one parameter, which gets the message"
    if not callable(handler):
        raise ConfigError(f"{handler!r} cannot be called", hint=hint)
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        raise ConfigError(f"{handler!r} cannot be called with a message: {error}", hint=hint) from None
    except ValueError:
        return  # of some built-in functions nobody knows


def _composed(handler: Callable[[Any], Any], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if is_async(handler):

        @functools.wraps(handler)
        async def call_async(given: Any) -> Any:
            return await handler(convert(given))

        return call_async

    @functools.wraps(handler)
    def call(given: Any) -> Any:
        return handler(convert(given))

    return call


def wanted_by(handler: Callable[[Any], Any], *, batches: bool = False) -> Any:
    """What its first parameter is annotated with, in a batch what each item is; None if that says nothing."""
    wanted = _annotation(handler)
    if not batches:
        return wanted
    items = typing.get_args(wanted)
    return items[0] if items else None


def _annotation(handler: Callable[[Any], Any]) -> Any:
    try:
        parameters = list(inspect.signature(handler).parameters)
    except ValueError:
        return None  # of some built-in functions nobody knows
    if not parameters:
        return None
    try:
        return typing.get_type_hints(function_behind(handler)).get(parameters[0])
    except (NameError, TypeError):
        return None  # names that exist for type checkers only: the message it is
