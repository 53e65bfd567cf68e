"""Commands: what a frame says. Requests and answers alike; the JSON header codec lives here.

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"remark":"...",
     "serializeTypeCurrentRPC":"JSON","version":479}

The custom fields stay undecoded until a handler asks for them, as one typed struct: `command.read(PullMessage)`.

Java: RemotingCommand, RemotingSerializable
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError, HeaderError
from orbitmq.protocol import versions
from orbitmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, LANGUAGES, RequestCode, ResponseCode, name_of
from orbitmq.protocol.fields import text_fields
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, Frame, frame_bytes, frame_prefix, lengths
from orbitmq.protocol.header_binary import (
    decode_binary_fields,
    decode_binary_header,
    encode_binary_fields,
    encode_binary_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.protocol.headers.base import Header

H = TypeVar("H", bound="Header")

_OUR_LANGUAGE: Final = "PYTHON"
_SHORT_BODY_BYTES: Final = 4096
_LARGE_BODY_BYTES: Final = 16 * 1024  # not worth copying behind its header
_BARE_HEADER: Final = (
    b'{"code":%d,"flag":%d,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
)
_USUAL_HEADER: Final = (
    b'{"code":%d,"extFields":%b,"flag":%d,"language":"PYTHON",'
    b'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
)
_NO_FIELDS: Final = msgspec.Raw()
# Such a header is read slowly, and before it is known who sent it. Properties, one token of it, take up to 32 KiB.
_LONGEST_LOOSE_HEADER: Final = 64 << 10
_MOST_LOOSE_TOKENS: Final = 4096
_KNOWN_LANGUAGES: Final = frozenset(LANGUAGES)


class _JsonHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    extFields: msgspec.Raw = _NO_FIELDS  # noqa: N815 - the protocol's spelling
    language: str | int | None = None
    remark: str | None = None


_decode_json_header: Final = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_encode_json: Final = msgspec.json.Encoder().encode


OK_HEADER: Final = (
    b'{"code":0,"flag":%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % (
        FLAG_RESPONSE,
        versions.OURS,
    )
)


class Command:
    """One request or answer."""

    __slots__ = (
        "_fields",
        "_raw",
        "_raw_codec",
        "arrived",
        "body",
        "code",
        "flag",
        "language",
        "opaque",
        "parts",
        "remark",
        "version",
    )

    def __init__(
        self,
        code: int,
        *,
        flag: int = 0,
        opaque: int = 0,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
        language: str = _OUR_LANGUAGE,
        version: int = versions.OURS,
    ) -> None:
        self.code = code
        self.flag = flag
        self.opaque = opaque
        self.body = body
        # More of the body, sent behind `body` without being copied together first.
        self.parts: Sequence[memoryview] = ()
        self.remark = remark
        self.language = language
        self.version = version
        self._fields = fields
        # The fields as they came in, until somebody reads them; kept so that a forwarded command keeps its bytes.
        self._raw: bytes | msgspec.Raw = b""
        self._raw_codec = CODEC_JSON
        self.arrived = 0.0  # when a request was read, by the event loop's clock; for who measures how long it took

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def fields(self) -> Mapping[str, str]:
        """The custom fields as text. Handlers want `read`; this is for signing, forwarding and optional extras."""
        if self._fields is None:
            if not self._raw:
                return {}
            self._fields = decode_binary_fields(self._raw) if self._raw_codec else text_fields(self._raw)
        return self._fields

    def to_be_answered(self) -> Command:
        """What whoever answers this request later needs of it. The rest may be as large as a frame, and need not wait."""
        kept = Command(self.code, flag=self.flag, opaque=self.opaque, language=self.language, version=self.version)
        kept.arrived = self.arrived
        return kept

    def add_fields(self, **texts: str) -> None:
        self._fields = {**self.fields, **texts}
        self._raw = b""

    def read(self, header_type: type[H]) -> H:
        """The custom fields as one typed struct; HeaderError names the field that is missing or ill-typed."""
        if self._fields is None and self._raw_codec == CODEC_JSON:
            return header_type.from_json(self._raw or b"{}")
        if self._raw_codec == CODEC_BINARY:  # where an empty text means that there is none
            return header_type.from_fields({name: text for name, text in self.fields.items() if text})
        return header_type.from_fields(self.fields)

    def __repr__(self) -> str:
        kind: type[RequestCode] | type[ResponseCode] = ResponseCode if self.is_response else RequestCode
        what = "answer" if self.is_response else "one-way request" if self.is_oneway else "request"
        return f"<{what} {name_of(self.code, kind)} #{self.opaque} {self.fields} body={len(self.body)}>"


def request(code: int, header: Header | None = None, body: bytes = b"", *, oneway: bool = False) -> Command:
    fields = header.to_fields() if header is not None else None
    return Command(code, flag=FLAG_ONEWAY if oneway else 0, fields=fields, body=body)


def request_with_raw_fields(code: int, fields: bytes, body: bytes = b"") -> Command:
    """A request whose fields are JSON already: for those that are sent again and again."""
    command = Command(code, body=body)
    command._raw = fields
    return command


def ok(header: Header | None = None, body: bytes = b"") -> Command:
    """A successful answer."""
    return Command(0, flag=FLAG_RESPONSE, fields=None if header is None else header.to_fields(), body=body)


def ok_frame(opaque: int) -> bytes:
    """The whole frame that says `ok()` to request `opaque`."""
    header = OK_HEADER % opaque
    return lengths(len(header) + 4, len(header)) + header


def ok_with_raw_fields(fields: bytes) -> Command:
    """A successful answer whose fields are JSON already: for answers given a hundred thousand times a second."""
    command = Command(0, flag=FLAG_RESPONSE)
    command._raw = fields
    return command


def answer(code: int, remark: str | None = None, header: Header | None = None, body: bytes = b"") -> Command:
    fields = header.to_fields() if header is not None else None
    return Command(int(code), flag=FLAG_RESPONSE, fields=fields, body=body, remark=remark)


def decode(frame: Frame) -> Command:
    """HeaderError when the header is not one; the connection it came from is then of no further use."""
    codec, header, body = frame
    if codec == CODEC_BINARY:
        code, language, version, opaque, flag, remark, raw_fields = decode_binary_header(header)
        command = Command(code, flag=flag, opaque=opaque, body=body, remark=remark, language=language, version=version)
        command._raw = raw_fields
        command._raw_codec = CODEC_BINARY
        return command
    try:
        json_header = _decode_json_header(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        loose = _read_as_fastjson(header)
        if loose is None:
            raise HeaderError(f"JSON header is broken: {error}") from None
        json_header = loose
    command = Command.__new__(Command)
    command.code = json_header.code
    command.flag = json_header.flag
    command.opaque = json_header.opaque
    command.version = json_header.version
    command.remark = json_header.remark
    command.language = _language_name(json_header.language)
    command.body = body
    command.parts = ()
    command._fields = None
    command._raw = json_header.extFields
    command._raw_codec = CODEC_JSON
    command.arrived = 0.0
    return command


def _read_as_fastjson(header: bytes) -> _JsonHeader | None:
    """What Apache's servers read all the same: control characters between quotes, null for a number, fastjson's own dialect."""
    if len(header) > _LONGEST_LOOSE_HEADER:
        return None
    try:
        members = fastjson.loads(header, dict, max_tokens=_MOST_LOOSE_TOKENS)
        return _decode_json_header(_encode_json({name: value for name, value in members.items() if value is not None}))
    except (BodyError, msgspec.MsgspecError, TypeError):  # TypeError: a key that is an object
        return None


def encode(command: Command, codec: int = CODEC_JSON) -> bytes:
    """The whole frame."""
    if codec == CODEC_BINARY:
        raw = bytes(command._raw) if command._raw_codec == CODEC_BINARY else b""
        header = encode_binary_header(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            command.remark,
            raw or encode_binary_fields(command.fields),
        )
    else:
        header = encode_json_header(command)
    return frame_bytes(header, command.body, codec)


def encode_pieces(command: Command) -> list[bytes | memoryview]:
    """As `encode` with the JSON header, for writers that can send several pieces at once."""
    header = encode_json_header(command)
    body = command.body
    if command.parts:
        body_length = len(body) + sum(map(len, command.parts))
        return [frame_prefix(len(header), body_length) + header + body, *command.parts]
    prefix = frame_prefix(len(header), len(body))
    if len(body) >= _LARGE_BODY_BYTES:
        return [prefix + header, body]
    # Most answers are short, and then adding is quicker than joining.
    return [prefix + header + body if len(body) < _SHORT_BODY_BYTES else b"".join((prefix, header, body))]


def encode_json_header(command: Command) -> bytes:
    """Compact, keys in fastjson's alphabetical order: Go's client splits some texts by hand and needs it so."""
    fields: bytes | msgspec.Raw = b""
    if command._raw and command._raw_codec == CODEC_JSON:
        fields = command._raw
    elif command._fields is not None or command._raw:
        fields = _encode_json(command.fields)
    if command.remark is None and command.language is _OUR_LANGUAGE:
        if not fields:
            return _BARE_HEADER % (command.code, command.flag, command.opaque, command.version)
        return _USUAL_HEADER % (command.code, fields, command.flag, command.opaque, command.version)
    return b'{"code":%d%b,"flag":%d,"language":"%b","opaque":%d%b,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        command.code,
        b',"extFields":%b' % fields if fields else b"",
        command.flag,
        command.language.encode(),
        command.opaque,
        b',"remark":%b' % _encode_json(command.remark) if command.remark is not None else b"",
        command.version,
    )


def _language_name(language: str | int | None) -> str:
    """Names come in any case, ordinals as numbers, and unknown ones must not fail the command."""
    if language == "JAVA":
        return language
    if isinstance(language, int):
        return LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    name = (language or "OTHER").upper()
    return name if name in _KNOWN_LANGUAGES else "OTHER"
