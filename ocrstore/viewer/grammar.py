"""The small language of filters: text becomes a tree; hides tokens and precedence.

    width > 1000 and polygons.count >= 5 and key ~ "img_1"
    not (hmean >= 0.8) or texts ~ "total"
    annotated and width > height

Comparisons are = != < <= > >= and ~ (a regular expression, upper and lower case alike) with a
number, a text in quotes, true, false or another field; `and`, `or`, `not` and parentheses join
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrstore.errors import SchemaError

MAX_LENGTH = 2000
_MAX_DEPTH = 60
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<quoted>`[^`]+`)
    | (?P<name>[^\W\d][\w/]*(?:\.\w+)*)
    | (?P<sign><=|>=|==|!=|<>|!~|[<>=~()])
    )""",
    re.VERBOSE,
)
_SAME = {"==": "=", "<>": "!="}
_COMPARISONS = {"=", "!=", "<", "<=", ">", ">=", "~", "!~"}


class FilterError(SchemaError):
    """A filter that cannot be understood; `position` is where in its text, if that is known."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Name:
    """A field."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, or true or false."""

    value: float | int | str | bool
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field, how it is compared, and with what."""

    left: Name
    sign: str
    right: Name | Literal
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary."""

    inner: Node


@dataclass(frozen=True, slots=True)
class Both:
    """`and`, or with `either` `or`."""

    left: Node
    right: Node
    either: bool


Node = Name | Comparison | Not | Both


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Node:
    """Return a filter's tree, or say where it cannot be understood."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"a filter has at most {MAX_LENGTH} characters, this one {len(text)}")
    return _Parser(_tokens(text), len(text)).whole()


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            what = "this quote is never closed" if text[at] in "\"'`" else "not understood"
            raise FilterError(f"{what}: {text[at : at + 20]}", position=at)
        kind = found.lastgroup
        tokens.append(_Token(kind, found[kind], found.start(kind)))
        at = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], length: int) -> None:
        self._tokens = tokens
        self._length = length
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        token = self._peek()
        if token is not None:
            raise FilterError(
                f"expected `and`, `or` or the end before {token.text}", position=token.position
            )
        return node

    def _either(self) -> Node:
        node = self._both()
        while self._take_word("or"):
            node = Both(node, self._both(), either=True)
        return node

    def _both(self) -> Node:
        node = self._not()
        while self._take_word("and"):
            node = Both(node, self._not(), either=False)
        return node

    def _not(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise FilterError(f"nested more than {_MAX_DEPTH} deep")
        try:
            return Not(self._not()) if self._take_word("not") else self._single()
        finally:
            self._depth -= 1

    def _single(self) -> Node:
        token = self._peek()
        if token is not None and token.text == "(" and token.kind == "sign":
            self._next += 1
            node = self._either()
            closing = self._peek()
            if closing is None or closing.text != ")":
                raise FilterError("this parenthesis is never closed", position=token.position)
            self._next += 1
            return node
        left = self._operand()
        if not isinstance(left, Name):
            raise FilterError(
                "a comparison begins with a field, such as width > 1000", position=left.position
            )
        sign = self._peek()
        if sign is None or sign.kind != "sign" or sign.text == ")":
            return left
        if _SAME.get(sign.text, sign.text) not in _COMPARISONS:
            raise FilterError(f"{sign.text} does not belong here", position=sign.position)
        self._next += 1
        right = self._operand()
        return Comparison(left, _SAME.get(sign.text, sign.text), right, sign.position)

    def _operand(self) -> Name | Literal:
        token = self._peek()
        if token is None:
            raise FilterError("the filter ends too early", position=self._length)
        self._next += 1
        if token.kind == "number":
            whole = re.fullmatch(r"[+-]?\d{1,18}", token.text)
            return Literal(int(token.text) if whole else float(token.text), token.position)
        if token.kind == "text":
            return Literal(re.sub(r"\\(['\"])", r"\1", token.text[1:-1]), token.position)
        if token.kind == "quoted":
            return Name(token.text[1:-1], token.position)
        word = token.text.lower()
        if token.kind == "name" and word in ("true", "false"):
            return Literal(word == "true", token.position)
        if token.kind != "name" or word in ("and", "or", "not"):
            raise FilterError(
                f"expected a field, a number or a text, found {token.text}", position=token.position
            )
        return Name(token.text, token.position)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "name" or token.text.lower() != word:
            return False
        self._next += 1
        return True
