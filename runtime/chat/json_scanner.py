"""Reads one JSON value from text that comes in pieces, and knows as early as possible that it is none."""

import re
from enum import Enum, auto

_MAX_DEPTH = 128
_SPACE = " \t\n\r"
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = "0123456789"
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}

# What may follow inside a number, by where in it one is; a number may end in the states of _NUMBER_ENDS.
_NUMBER: dict[str, dict[str, str]] = {
    "minus": {"0": "zero"} | dict.fromkeys("123456789", "int"),
    "zero": {".": "point", "e": "exp", "E": "exp"},
    "int": {".": "point", "e": "exp", "E": "exp"} | dict.fromkeys(_DIGITS, "int"),
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"e": "exp", "E": "exp"} | dict.fromkeys(_DIGITS, "fraction"),
    "exp": {"+": "sign", "-": "sign"} | dict.fromkeys(_DIGITS, "power"),
    "sign": dict.fromkeys(_DIGITS, "power"),
    "power": dict.fromkeys(_DIGITS, "power"),
}
_NUMBER_ENDS = frozenset({"zero", "int", "fraction", "power"})


class JsonStatus(Enum):
    OPEN = auto()
    """More text is needed."""
    DONE = auto()
    """The value is complete."""
    BROKEN = auto()
    """Whatever follows, this is no JSON object."""


class _Expect(Enum):
    OBJECT = auto()
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()


class JsonObjectScanner:
    """Strict JSON (RFC 8259) of one object. Remembers where the values of its own members lie.

    Feed text until `status` is no longer OPEN. The cost of a character does not depend on those before it.
    """

    def __init__(self) -> None:
        self.status = JsonStatus.OPEN
        self.key_spans: list[tuple[int, int]] = []
        """Start and end of the key of each member of the object (quotes included), counted in characters from the
        first one fed."""
        self.value_spans: list[tuple[int, int]] = []
        """The same of the values that are complete."""
        self._expect = _Expect.OBJECT
        self._stack: list[str] = []
        self._offset = 0
        self._is_key = False
        self._number = ""
        self._rest = ""
        """What must still come of a literal, or how many hexadecimal digits."""
        self._start = 0
        self._value_start = 0

    def feed(self, text: str, start: int = 0) -> int:
        """Read `text` from `start`; returns where reading stopped: after the object, at what broke it, or the end."""
        base = self._offset - start
        at = start
        while at < len(text) and self.status is JsonStatus.OPEN:
            self._offset = base + at
            if self._expect is _Expect.STRING and (run := _STRING_RUN.match(text, at)):
                at = run.end()
                continue
            at += self._step(text[at])
        self._offset = base + at
        return at

    def _step(self, letter: str) -> int:
        """Take one character; returns 1, or 0 if it has to be looked at again or broke the value."""
        expect = self._expect
        if expect is _Expect.STRING:
            return self._in_string(letter)
        if expect is _Expect.ESCAPE:
            self._rest = "0123"
            return self._to(_Expect.HEX if letter == "u" else _Expect.STRING, letter in '"\\/bfnrtu')
        if expect is _Expect.HEX:
            self._rest = self._rest[1:]
            return self._to(_Expect.HEX if self._rest else _Expect.STRING, letter in _HEX)
        if expect is _Expect.NUMBER:
            return self._in_number(letter)
        if expect is _Expect.LITERAL:
            good, self._rest = letter == self._rest[0], self._rest[1:]
            return (
                self._to(expect, True)
                if good and self._rest
                else self._end_value(1)
                if good
                else self._break()
            )
        if letter in _SPACE:
            return 1
        return self._structure(expect, letter)

    def _structure(self, expect: _Expect, letter: str) -> int:
        if expect is _Expect.OBJECT:
            return self._open(letter) if letter == "{" else self._break()
        if expect in (_Expect.KEY, _Expect.KEY_OR_END):
            if letter == "}" and expect is _Expect.KEY_OR_END:
                return self._close(letter)
            return self._begin_string(is_key=True) if letter == '"' else self._break()
        if expect is _Expect.COLON:
            return self._to(_Expect.VALUE, letter == ":")
        if expect is _Expect.COMMA_OR_END:
            if letter == ",":
                return self._to(_Expect.KEY if self._stack[-1] == "{" else _Expect.VALUE, True)
            return self._close(letter)
        if letter == "]" and expect is _Expect.VALUE_OR_END:
            return self._close(letter)
        return self._begin_value(letter)

    def _begin_value(self, letter: str) -> int:
        if len(self._stack) == 1:
            self._value_start = self._offset
        if letter == '"':
            return self._begin_string(is_key=False)
        if letter in "{[":
            return self._open(letter)
        if letter in _LITERALS:
            self._rest = _LITERALS[letter]
            return self._to(_Expect.LITERAL, True)
        self._number = "minus" if letter == "-" else _NUMBER["minus"].get(letter, "")
        return self._to(_Expect.NUMBER, bool(self._number))

    def _begin_string(self, *, is_key: bool) -> int:
        self._is_key, self._start = is_key, self._offset
        return self._to(_Expect.STRING, True)

    def _in_string(self, letter: str) -> int:
        if letter == "\\":
            return self._to(_Expect.ESCAPE, True)
        if letter != '"':
            return self._break()  # a control character
        if not self._is_key:
            return self._end_value(1)
        if len(self._stack) == 1:
            self.key_spans.append((self._start, self._offset + 1))
        return self._to(_Expect.COLON, True)

    def _in_number(self, letter: str) -> int:
        following = _NUMBER[self._number].get(letter)
        if following is not None:
            self._number = following
            return 1
        return self._end_value(0) if self._number in _NUMBER_ENDS else self._break()

    def _open(self, letter: str) -> int:
        self._stack.append(letter)
        expect = _Expect.KEY_OR_END if letter == "{" else _Expect.VALUE_OR_END
        return self._to(expect, len(self._stack) <= _MAX_DEPTH)

    def _close(self, letter: str) -> int:
        if letter != ("}" if self._stack[-1] == "{" else "]"):
            return self._break()
        self._stack.pop()
        return self._end_value(1)

    def _end_value(self, taken: int) -> int:
        """A value is complete; its last character is this one (`taken` 1) or the one before (0)."""
        if not self._stack:
            self.status = JsonStatus.DONE
        elif len(self._stack) == 1:
            self.value_spans.append((self._value_start, self._offset + taken))
        self._expect = _Expect.COMMA_OR_END
        return taken

    def _to(self, expect: _Expect, allowed: bool) -> int:
        if not allowed:
            return self._break()
        self._expect = expect
        return 1

    def _break(self) -> int:
        self.status = JsonStatus.BROKEN
        return 0
