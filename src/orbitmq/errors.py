"""Every exception OrbitMQ raises, as one tree.

OrbitError                   what happened, to what; `.code` for programs, `.hint` says what to do
├── ConfigError              a setting that cannot be used
│   └── ForbiddenSetting     one that must not be changed from afar
├── ProtocolError            bytes that are not what the protocol says
│   ├── FrameError           the envelope: lengths, header codec
│   │   └── FrameTooLarge    more than a limit allows; `.limit` is its key
│   ├── HeaderError          the header inside it: broken JSON, missing or ill-typed fields
│   └── BodyError            the body: broken JSON, wrong shape, lying lengths
├── MessageError             a message that cannot be encoded or decoded
│   └── InflatedTooLarge     a compressed body that would be larger than allowed
├── RequestFailed            an answer other than success, given or received; `.code` is its response code
│   └── HiddenRefusal        no permission, answered as if there were nothing; the audit log says so
├── TransportError           the connection, not the request
│   ├── ConnectFailed        nobody listens there, or not what we expect
│   ├── ConnectionLost       it closed while an answer was awaited
│   └── CallTimeout          no answer in time
├── AlreadyClosed            a client, producer or consumer used after its end
├── RetryLater               raised by a handler: give me this message again, and when
└── StorageError             the store cannot do what was asked
    ├── StoreCorrupt         bytes on disk that contradict each other
    ├── StoreLocked          another process has this directory open
    ├── StoreFull            no room: the disk, or a limit
    └── StoreFenced          a failed sync made further writes unsafe; reading goes on
"""

from __future__ import annotations


class OrbitError(Exception):
    """The root. `code` is a number other programs understand (0: none applies)."""

    code: int = 0
    hint: str = ""

    def __init__(self, message: str, *, hint: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint:
            self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(OrbitError):
    pass


class ForbiddenSetting(ConfigError):
    pass


class ProtocolError(OrbitError):
    pass


class FrameError(ProtocolError):
    pass


class FrameTooLarge(FrameError):
    def __init__(self, message: str, *, hint: str = "", limit: str = "") -> None:
        super().__init__(message, hint=hint)
        self.limit = limit


class HeaderError(ProtocolError):
    pass


class BodyError(ProtocolError):
    pass


class MessageError(OrbitError):
    pass


class InflatedTooLarge(MessageError):
    pass


class RequestFailed(OrbitError):
    """An answer other than success. Handlers raise it; callers get it from `Connection.call`."""

    def __init__(self, code: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=code)


class HiddenRefusal(RequestFailed):
    pass


class TransportError(OrbitError):
    pass


class ConnectFailed(TransportError):
    pass


class ConnectionLost(TransportError):
    pass


class CallTimeout(TransportError):
    pass


class AlreadyClosed(OrbitError):
    pass


class RetryLater(OrbitError):
    """Raised by a handler that wants its message again, without the log entry that other exceptions cause.

    `delay_level` counts the broker's delay levels from 1 (one second); 0 lets the broker choose, -1 gives the message up to
    the dead-letter topic.
    """

    def __init__(self, message: str = "the handler asked for this message again", *, delay_level: int = 0) -> None:
        super().__init__(message)
        self.delay_level = delay_level


class StorageError(OrbitError):
    pass


class StoreCorrupt(StorageError):
    pass


class StoreLocked(StorageError):
    pass


class StoreFull(StorageError):
    pass


class StoreFenced(StorageError):
    pass
