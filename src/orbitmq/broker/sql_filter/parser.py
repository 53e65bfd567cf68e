"""From text to expression.

    or     := and (OR and)*                            unary   := + unary | - unary | NOT unary | primary
    and    := eq (AND eq)*                             primary := literal | name | ( or )
    eq     := cmp (= cmp | <> cmp | IS [NOT] NULL)*
    cmp    := unary ( > unary | >= unary | < unary | <= unary
                    | [NOT] CONTAINS text | [NOT] STARTSWITH text | [NOT] ENDSWITH text
                    | [NOT] BETWEEN unary AND unary | [NOT] IN ( text, ... ) )*

What follows a complete expression is ignored, as Java ignores it.

Java: SelectorParser
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.sql_filter import expressions as build
from orbitmq.broker.sql_filter.expressions import BadExpression, Expression
from orbitmq.broker.sql_filter.tokens import Kind, Tokens, kind_name

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DEPTH: Final = 100
_MOST_OPERANDS: Final = 500  # a filter is evaluated for every message that it may want, while all others wait

_ORDERINGS: Final = {">": build.above, ">=": build.at_least, "<": build.below, "<=": build.at_most}
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WORDS: Final = {"TRUE": build.TRUE, "FALSE": build.FALSE, "NULL": build.NULL}


class Parser:
    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._depth = 0
        self._operands = 0

    def parse(self) -> Expression:
        """RequestFailed (SUBSCRIPTION_PARSE_FAILED) says what is wrong, and where."""
        try:
            return build.condition(self._or())
        except BadExpression as error:
            raise self._tokens.error(str(error), self._tokens.peek().at) from None

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._tokens.is_keyword("OR"):
            self._tokens.take()
            parts.append(self._and())
        return build.either(*parts)

    def _and(self) -> Expression:
        parts = [self._equality()]
        while self._tokens.is_keyword("AND"):
            self._tokens.take()
            parts.append(self._equality())
        return build.both(*parts)

    def _equality(self) -> Expression:
        tokens = self._tokens
        left = self._comparison()
        while True:
            if tokens.is_symbol("="):
                tokens.take()
                left = build.equal(left, self._comparison())
            elif tokens.is_symbol("<>"):
                tokens.take()
                left = build.not_equal(left, self._comparison())
            elif tokens.is_keyword("IS"):
                tokens.take()
                negated = tokens.is_keyword("NOT")
                if negated:
                    tokens.take()
                tokens.expect(Kind.KEYWORD, "NULL")
                left = build.is_not_null(left) if negated else build.is_null(left)
            else:
                return left

    def _comparison(self) -> Expression:
        tokens = self._tokens
        left = self._unary()
        while True:
            token = tokens.peek()
            if token.kind is Kind.SYMBOL and token.text in _ORDERINGS:
                tokens.take()
                left = _ORDERINGS[token.text](left, self._unary())
                continue
            negated = token == (Kind.KEYWORD, "NOT", token.at)
            word = tokens.peek(1) if negated else token
            if word.kind is not Kind.KEYWORD or (word.text not in _TEXT_TESTS and word.text not in ("BETWEEN", "IN")):
                if negated:
                    raise tokens.error(f"NOT {word.text} has no meaning here", token.at)
                return left
            if negated:
                tokens.take()
            tokens.take()
            left = self._worded(word.text, left, negated=negated)

    def _worded(self, word: str, left: Expression, *, negated: bool) -> Expression:
        if word == "BETWEEN":
            low = self._unary()
            self._tokens.expect(Kind.KEYWORD, "AND")
            high = self._unary()
            return build.between(left, low, high, negated=negated)
        if word == "IN":
            return build.within(left, self._texts(), negated=negated)
        return build.text_test(left, self._text(), _TEXT_TESTS[word], negated=negated)

    def _unary(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._tokens.error(f"it is nested more than {_MAX_DEPTH} deep", self._tokens.peek().at)
        self._operands += 1
        if self._operands > _MOST_OPERANDS:
            raise self._tokens.error(
                f"it compares more than {_MOST_OPERANDS} values, which takes too long; IN takes any number of texts",
                self._tokens.peek().at,
            )
        try:
            if self._tokens.is_symbol("+"):
                self._tokens.take()
                return self._unary()
            if self._tokens.is_symbol("-"):
                self._tokens.take()
                return build.minus(self._unary())
            if self._tokens.is_keyword("NOT"):
                self._tokens.take()
                return build.negation(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Expression:
        token = self._tokens.peek()
        if token.kind is Kind.STRING:
            return build.text_constant(self._text())
        if token.kind is Kind.INTEGER:
            return build.whole_number(self._tokens.take().text)
        if token.kind is Kind.FLOAT:
            return build.decimal_number(self._tokens.take().text)
        if token.kind is Kind.NAME:
            return build.property_named(self._tokens.take().text)
        if token.kind is Kind.KEYWORD and token.text in _WORDS:
            return _WORDS[self._tokens.take().text]
        if token.kind is Kind.SYMBOL and token.text == "(":
            self._tokens.take()
            inner = self._or()
            self._tokens.expect(Kind.SYMBOL, ")")
            return inner
        raise self._tokens.error(f"expected a value, found {token.text or kind_name(token)}", token.at)

    def _text(self) -> str:
        return self._tokens.expect(Kind.STRING).text[1:-1].replace("''", "'")

    def _texts(self) -> list[str]:
        self._tokens.expect(Kind.SYMBOL, "(")
        texts = [self._text()]
        while self._tokens.is_symbol(","):
            self._tokens.take()
            texts.append(self._text())
        self._tokens.expect(Kind.SYMBOL, ")")
        return texts
