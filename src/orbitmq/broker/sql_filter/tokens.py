"""A filter's text, cut into tokens on demand: what stands behind a complete expression is never looked at.

Java: SelectorParserTokenManager
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode

MOST_CHARACTERS: Final = 16 << 10  # reading one takes the broker's time, 10 us a character
_MOST_SHOWN: Final = 300


class Kind(Enum):
    KEYWORD = "keyword"
    NAME = "name"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end of the expression"


class Token(NamedTuple):
    kind: Kind
    text: str
    at: int


KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)

# A line comment needs its line end; without one, its dashes are minus signs.
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
_EXPONENT: Final = r"[eE][+-]?[0-9]+"
# In the order of preference; where two fit, the longer one wins, which this order ensures.
_TOKEN: Final = re.compile(
    rf"(?P<FLOAT>[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'(?:''|[^'])*')"
    r"|(?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<SYMBOL><>|>=|<=|[=<>(),+-])"
)


class Tokens:
    """The token ahead, and the one behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MOST_CHARACTERS:
            raise self.error(f"it has {len(text):,} characters, and {MOST_CHARACTERS:,} are the most", 0)
        self._ahead: list[Token] = []
        self._at = 0

    def peek(self, distance: int = 0) -> Token:
        while len(self._ahead) <= distance:
            self._ahead.append(self._read())
        return self._ahead[distance]

    def take(self) -> Token:
        token = self.peek()
        del self._ahead[0]
        return token

    def is_keyword(self, *words: str) -> bool:
        """Whether these keywords come next, in this order."""
        return all(self._is(distance, Kind.KEYWORD, word) for distance, word in enumerate(words))

    def is_symbol(self, symbol: str) -> bool:
        return self._is(0, Kind.SYMBOL, symbol)

    def expect(self, kind: Kind, text: str = "") -> Token:
        token = self.peek()
        if token.kind is not kind or (text and token.text != text):
            raise self.error(f"expected {text or kind.value}, found {token.text or kind_name(token)}", token.at)
        return self.take()

    def error(self, complaint: str, at: int) -> RequestFailed:
        """Points into the expression."""
        shown = self.text if len(self.text) <= _MOST_SHOWN else f"{self.text[:_MOST_SHOWN]}..."
        return RequestFailed(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"filter {shown!r}: {complaint}, at character {at + 1}"
        )

    def _is(self, distance: int, kind: Kind, text: str) -> bool:
        # One after the other: the second token is looked at only if the first fits.
        token = self.peek(distance)
        return token.kind is kind and token.text == text

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self.text, self._at)
        assert skipped is not None  # it matches the empty text
        at = skipped.end()
        if at == len(self.text):
            return Token(Kind.END, "", at)
        found = _TOKEN.match(self.text, at)
        if found is None or found.lastgroup is None:
            raise self.error(f"{self.text[at]!r} has no meaning here", at)
        self._at = found.end()
        text, kind = found.group(), Kind[found.lastgroup]
        if kind is Kind.NAME and text.upper() in KEYWORDS:
            return Token(Kind.KEYWORD, text.upper(), at)
        return Token(kind, text, at)


def kind_name(token: Token) -> str:
    return token.kind.value
