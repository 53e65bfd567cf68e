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

from typing import TYPE_CHECKING, Final, ParamSpec

from orbitmq.broker.sql_filter import expressions as build
from orbitmq.broker.sql_filter.expressions import BadExpression, Expression
from orbitmq.broker.sql_filter.tokens import Kind, Token, Tokens, kind_name

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")

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
        at = self._here()
        return self._built(at, build.condition, self._or())

    def _or(self) -> Expression:
        starts, parts = [self._here()], [self._and()]
        while self._tokens.is_keyword("OR"):
            self._tokens.take()
            starts.append(self._here())
            parts.append(self._and())
        return self._joined(build.either, starts, parts)

    def _and(self) -> Expression:
        starts, parts = [self._here()], [self._equality()]
        while self._tokens.is_keyword("AND"):
            self._tokens.take()
            starts.append(self._here())
            parts.append(self._equality())
        return self._joined(build.both, starts, parts)

    def _joined(self, join: Callable[..., Expression], starts: list[int], parts: list[Expression]) -> Expression:
        if len(parts) == 1:
            return parts[0]
        conditions = [self._built(at, build.condition, part) for at, part in zip(starts, parts, strict=True)]
        return self._built(starts[0], join, *conditions)

    def _here(self) -> int:
        return self._tokens.peek().at

    def _built(self, at: int, make: Callable[_P, Expression], *parts: _P.args, **how: _P.kwargs) -> Expression:
        """What cannot be made of them is complained of at that character."""
        try:
            return make(*parts, **how)
        except BadExpression as error:
            raise self._tokens.error(str(error), at) from None

    def _equality(self) -> Expression:
        tokens = self._tokens
        left = self._comparison()
        while True:
            at = self._here()
            if tokens.is_symbol("="):
                tokens.take()
                left = self._built(at, build.equal, left, self._comparison())
            elif tokens.is_symbol("<>"):
                tokens.take()
                left = self._built(at, build.not_equal, left, self._comparison())
            elif tokens.is_keyword("IS"):
                tokens.take()
                negated = tokens.is_keyword("NOT")
                if negated:
                    tokens.take()
                tokens.expect(Kind.KEYWORD, "NULL")
                left = self._built(at, build.is_not_null if negated else build.is_null, left)
            else:
                return left

    def _comparison(self) -> Expression:
        tokens = self._tokens
        left = self._unary()
        while True:
            token = tokens.peek()
            if token.kind is Kind.SYMBOL and token.text in _ORDERINGS:
                tokens.take()
                left = self._built(token.at, _ORDERINGS[token.text], left, self._unary())
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
            left = self._worded(word, left, negated=negated)

    def _worded(self, word: Token, left: Expression, *, negated: bool) -> Expression:
        if word.text == "BETWEEN":
            low = self._unary()
            self._tokens.expect(Kind.KEYWORD, "AND")
            high = self._unary()
            return self._built(word.at, build.between, left, low, high, negated=negated)
        if word.text == "IN":
            return self._built(word.at, build.within, left, self._texts(), negated=negated)
        return self._built(word.at, build.text_test, left, self._text(), _TEXT_TESTS[word.text], negated=negated)

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
        at = self._here()
        try:
            if self._tokens.is_symbol("+"):
                self._tokens.take()
                return self._unary()
            if self._tokens.is_symbol("-"):
                self._tokens.take()
                return self._built(at, build.minus, self._unary())
            if self._tokens.is_keyword("NOT"):
                self._tokens.take()
                operand_at = self._here()
                operand = self._unary()
                return self._built(at, build.negation, self._built(operand_at, build.condition, operand))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Expression:
        token = self._tokens.peek()
        if token.kind is Kind.STRING:
            return build.text_constant(self._text())
        if token.kind is Kind.INTEGER:
            return self._built(token.at, build.whole_number, self._tokens.take().text)
        if token.kind is Kind.FLOAT:
            return self._built(token.at, build.decimal_number, self._tokens.take().text)
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
