"""JSON as Java's fastjson 1.2 speaks it: in the broker's config files and in many bodies on the wire.

    {0:250,1:250}                                   integer keys stand bare
    {{"brokerName":"a","queueId":0,"topic":"t"}:5}  a map may be keyed by an object
    {name:'x',}                                     bare names, single quotes and trailing commas are accepted
    {"a":{"x":1},"b":{"$ref":"$.a"}}                an object met before is a reference to where it stood

`loads` takes all of it and tries the cheap ways first: strict JSON, then strict JSON once bare integer keys are
quoted, then a reader of our own. Keys come back as str, whether they stood bare or quoted, because Java does not tell
them apart either; ask for `dict[int, ...]` to get integers. A key that is an object comes back as ObjectKey.

`dumps` writes one compact line, with integer keys bare if the reader at the other end is one that insists.

Our own reader takes half a microsecond for each bracket, comma, text or number, a hundred times what strict JSON takes, while
everybody else waits. So what strangers send it may have so many of them and no more; real programs hardly ever send anything that
is not strict but for bare keys. What was asked for, and files, may be larger (`MAX_TOKENS_ASKED_FOR`): of maps keyed by queues,
which tools get from brokers, there may be thousands.

Hostile input ends in BodyError: nesting is bounded, references may neither form a cycle nor multiply without end, and no
regular expression here goes back over what it has read. That is why their repeats are possessive, and why a string that
is never closed reaches to the end when keys are quoted: as no match, the search would begin anew at each quote in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar, overload

import msgspec

from orbitmq.errors import BodyError

T = TypeVar("T")

MAX_DEPTH: Final = 128
MAX_DIGITS: Final = 300
MAX_TOKENS: Final = 250_000  # that are read by our own reader
MAX_TOKENS_ASKED_FOR: Final = 16_000_000
MAX_EXPANDED_VALUES: Final = 4_000_000  # after references are followed
MAX_REFERENCE_STEPS: Final = 250_000  # in the paths of all references together

# Everything before such a key in one match: strings come by the million, and each would be a call of Python's.
_UP_TO_A_BARE_INTEGER_KEY: Final = re.compile(
    rb"""((?:
        [^"{,]++
      | "[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)
      | [{,](?!\s*+-?\d++\s*+:)
    )*+)
    (?:([{,]\s*+)(-?\d++)(?=\s*+:))?""",
    re.VERBOSE | re.DOTALL,
)


class ObjectKey(Mapping[str, Any]):
    """An object that stood where a key should: a mapping that can be hashed. Equal to any mapping of the same items."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = {name: _frozen(value) for name, value in items.items()}
        self._hash = hash(frozenset((name, _salted(value)) for name, value in self._items.items()))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"ObjectKey({self._items!r})"


@overload
def loads(data: bytes | bytearray | memoryview, *, max_tokens: int = ...) -> Any: ...
@overload
def loads(data: bytes | bytearray | memoryview, shape: type[T], *, max_tokens: int = ...) -> T: ...
def loads(data: bytes | bytearray | memoryview, shape: Any = Any, *, max_tokens: int = MAX_TOKENS) -> Any:
    """The value, converted to `shape`: numbers in strings become numbers, maps keyed by objects take frozen structs."""
    try:
        return _loads(bytes(data), shape, max_tokens)
    except RecursionError:
        raise BodyError(f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except msgspec.ValidationError as error:
        raise BodyError(f"JSON of another shape: {error}") from error


def dumps(value: Any, *, bare_int_keys: bool = False) -> bytes:
    """One compact line of UTF-8. Structs, dataclasses and ObjectKeys may be values and keys alike."""
    if not bare_int_keys:
        try:
            return msgspec.json.encode(value)
        except TypeError:
            pass  # a key that strict JSON cannot write
    pieces: list[str] = []
    try:
        _write(value, pieces, bare_int_keys)
    except RecursionError:
        raise BodyError("value nested too deeply for JSON, or within itself") from None
    return "".join(pieces).encode()


def _loads(data: bytes, shape: Any, max_tokens: int) -> Any:
    if b"$ref" in data:
        plain = _References(_parse(data, Any, max_tokens)).resolved()
        return msgspec.convert(plain, shape, strict=False, str_keys=True)
    return _parse(data, shape, max_tokens)


def _parse(data: bytes, shape: Any, max_tokens: int) -> Any:
    try:
        try:
            return msgspec.json.decode(data, type=shape, strict=False)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            pass
        quoted = _with_quoted_integer_keys(data, max_tokens)
        try:
            if quoted != data:
                return msgspec.json.decode(quoted, type=shape, strict=False)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            pass
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"JSON that is not UTF-8: {error}") from error
    return msgspec.convert(_Reader(text, max_tokens).whole(), shape, strict=False, str_keys=True)


def _with_quoted_integer_keys(data: bytes, max_keys: int) -> bytes:
    quoted, count = _UP_TO_A_BARE_INTEGER_KEY.subn(_quoted_key, data, max_keys)
    if count >= max_keys:
        raise BodyError(f"JSON with more than {max_keys:,} integer keys that are not quoted: send strict JSON instead")
    return quoted


def _quoted_key(found: re.Match[bytes]) -> bytes:
    before, mark, key = found.groups()
    return before if key is None else b'%b%b"%b"' % (before, mark, key)


def _salted(value: Any) -> Any:
    """For hashes that nobody can foresee: of texts they differ from process to process, of numbers they do not. Equal for equal values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return format(int(value), "x")
    return tuple(map(_salted, value)) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return ObjectKey(value) if isinstance(value, dict) else value


_TOKEN: Final = re.compile(
    r"""\s*+(?:
        (?P<mark>[{}\[\]:,])
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
      | (?P<number>-?\d++(?P<fraction>\.\d*+)?(?P<exponent>[eE][+-]?\d++)?)(?P<suffix>[LSBFD]?)(?![\w.])
      | (?P<name>[^\W\d][\w$.@-]*|\$[\w$.@-]*)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS: Final = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}


class _Reader:
    """Recursive descent over the tolerant grammar; one method a rule."""

    def __init__(self, text: str, max_tokens: int) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._max_tokens = self._tokens_left = max_tokens
        self._token = self._next()

    def whole(self) -> Any:
        value = self._value()
        if self._token.lastgroup != "end":
            self._fail("text after the end of the value")
        return value

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._position)
        if token is None:
            self._fail("no token of JSON")
        self._tokens_left -= 1
        if self._tokens_left < 0:
            raise BodyError(
                f"JSON in fastjson's dialect with more than {self._max_tokens:,} tokens: send strict JSON instead"
            )
        self._position = token.end()
        self._token = token
        return token

    def _fail(self, reason: str) -> NoReturn:
        raise BodyError(f"broken JSON at character {self._position}: {reason}")

    def _takes(self, mark: str) -> bool:
        if self._token["mark"] != mark:
            return False
        self._next()
        return True

    def _value(self) -> Any:
        token = self._token
        if token["mark"] == "{":
            return self._object()
        if token["mark"] == "[":
            return self._array()
        if token["string"] is not None:
            self._next()
            return _unescaped(token["string"][1:-1])
        if token["number"] is not None:
            self._next()
            return _number(token)
        if token["name"] in _WORDS:
            self._next()
            return _WORDS[token["name"]]
        return self._fail("a value was expected")

    def _object(self) -> dict[Any, Any]:
        self._enter("{")
        members: dict[Any, Any] = {}
        while not self._takes("}"):
            key = self._key()
            if not self._takes(":"):
                self._fail("':' was expected")
            members[key] = self._value()
            if not self._takes(",") and self._token["mark"] != "}":
                self._fail("',' or '}' was expected")
        self._depth -= 1
        return members

    def _array(self) -> list[Any]:
        self._enter("[")
        items: list[Any] = []
        while not self._takes("]"):
            items.append(self._value())
            if not self._takes(",") and self._token["mark"] != "]":
                self._fail("',' or ']' was expected")
        self._depth -= 1
        return items

    def _enter(self, mark: str) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        self._takes(mark)

    def _key(self) -> str | ObjectKey:
        token = self._token
        if token["mark"] == "{":
            return ObjectKey(self._object())
        if token["string"] is not None:
            self._next()
            return _unescaped(token["string"][1:-1])
        if token["number"] is not None or token["name"] is not None:
            self._next()
            return token["number"] or token["name"]
        return self._fail("a key was expected")


def _number(token: re.Match[str]) -> int | float:
    if token["fraction"] is None and token["exponent"] is None and token["suffix"] not in ("F", "D"):
        if len(token["number"]) > MAX_DIGITS:
            raise BodyError(f"JSON with an integer of more than {MAX_DIGITS} digits")
        return int(token["number"])
    return float(token["number"])


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    decoded = _ESCAPE.sub(lambda found: _character(found), text)
    # Escapes name UTF-16 units: join the pairs, and let half a pair become U+FFFD as it does in Java's encoder ('?').
    return decoded.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(found: re.Match[str]) -> str:
    digits = found[1] or found[2]
    return chr(int(digits, 16)) if digits else _ESCAPED.get(found[3], found[3])


_REFERENCE_STEP: Final = re.compile(
    r"\.(?=[^.\[])([^.\[\\]*+(?:\\.[^.\[\\]*+)*+)|\[(-?\d{1,9})\]|\['([^']*+)'\]|\[\"([^\"]*+)\"\]", re.DOTALL
)
_STEP_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_BEING_FOLLOWED: Final = object()


class _References:
    """Puts in place of every `{"$ref": "$.path"}` what stands at that path."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._weights: dict[int, int] = {}  # by id(): values in it, references followed; 0 while it is being walked
        self._targets: dict[int, Any] = {}  # by id() of the reference: paths may lead through it many times
        self._followed: list[Any] = []  # keeps those ids from being given to others
        self._steps = 0

    def resolved(self) -> Any:
        if _is_reference(self._root):
            raise BodyError("JSON that consists of a reference")
        self._walk(self._root)
        return self._root

    def _walk(self, container: Any) -> int:
        known = self._weights.get(id(container))
        if known == 0:
            raise BodyError("JSON with a reference to something around it")
        if known is not None:
            return known
        self._weights[id(container)] = 0
        weight = 1
        members = container.items() if isinstance(container, dict) else enumerate(container)
        for place, value in list(members):
            if _is_reference(value):
                value = container[place] = self._target(value)
            weight += self._walk(value) if isinstance(value, dict | list) else 1
            if weight > MAX_EXPANDED_VALUES:
                raise BodyError("JSON whose references multiply beyond all measure")
        self._weights[id(container)] = weight
        return weight

    def _target(self, reference: dict[str, str]) -> Any:
        """Each reference is followed once: they may lead through each other, which doubled the work at every turn."""
        known = self._targets.get(id(reference))
        if known is _BEING_FOLLOWED:
            raise BodyError("JSON with a reference that leads through itself: send the value instead")
        if known is None:
            self._followed.append(reference)
            self._targets[id(reference)] = _BEING_FOLLOWED
            known = self._targets[id(reference)] = self._at(reference["$ref"])
        return known

    def _at(self, path: str) -> Any:
        """What stands at the path, which is never None."""
        value, position = self._root, 1
        while position < len(path) and path.startswith("$") and value is not None:
            step = _REFERENCE_STEP.match(path, position)
            if step is None:
                break
            self._steps += 1
            if self._steps > MAX_REFERENCE_STEPS:
                raise BodyError(
                    f"JSON whose references have more than {MAX_REFERENCE_STEPS} steps in their paths: "
                    "send values instead of references"
                )
            value = _member(value, step)
            if _is_reference(value):
                value = self._target(value)
            position = step.end()
        if not path.startswith("$") or position < len(path) or value is None:
            raise BodyError(f"JSON with a reference to nowhere: {path[:300]!r}")
        return value


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("$ref"), str)


def _member(value: Any, step: re.Match[str]) -> Any:
    """What one step of a path leads to; None if it leads nowhere."""
    name, number = step[1], step[2]
    if number is not None and isinstance(value, list):
        return value[int(number)] if -len(value) <= int(number) < len(value) else None
    if isinstance(value, dict):
        key = number or step[3] or step[4] or "".join(_STEP_ESCAPE.split(name or ""))
        return value.get(key)
    return None


def _write(value: Any, pieces: list[str], bare_int_keys: bool) -> None:
    if isinstance(value, Mapping):
        pieces.append("{")
        for number, (key, item) in enumerate(value.items()):
            if number:
                pieces.append(",")
            _write_key(key, pieces, bare_int_keys)
            pieces.append(":")
            _write(item, pieces, bare_int_keys)
        pieces.append("}")
    elif isinstance(value, list | tuple):
        pieces.append("[")
        for number, item in enumerate(value):
            if number:
                pieces.append(",")
            _write(item, pieces, bare_int_keys)
        pieces.append("]")
    elif value is None or isinstance(value, str | int | float):
        pieces.append(msgspec.json.encode(value).decode())
    else:
        _write(_members_of(value), pieces, bare_int_keys)


def _write_key(key: Any, pieces: list[str], bare_int_keys: bool) -> None:
    if isinstance(key, str):
        pieces.append(msgspec.json.encode(key).decode())
    elif isinstance(key, int) and not isinstance(key, bool):
        pieces.append(str(key) if bare_int_keys else f'"{key}"')
    else:
        _write(key, pieces, bare_int_keys)


def _members_of(value: Any) -> Any:
    """A struct's fields under their names on the wire, one level deep; other objects as msgspec turns them."""
    if isinstance(value, msgspec.Struct):
        omits = value.__struct_config__.omit_defaults
        fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {field.encode_name: item for field, item in fields if not (omits and _is_default(field, item))}
    builtin = msgspec.to_builtins(value)
    if type(builtin) is type(value):
        raise TypeError(f"cannot write {value!r} as JSON")
    return builtin


def _is_default(field: msgspec.structs.FieldInfo, item: Any) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(item == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(item == field.default)
