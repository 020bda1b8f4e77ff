"""The first look at PTX: text to statements, each with its line and the CUDA source line that .loc names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"|[;{}\n]|[^;{}\n"/]+|/', re.DOTALL)
LINE_DIRECTIVES = (".version", ".target", ".address_size", ".file", ".loc")  # end with their line, not with ";"
LABEL = re.compile(r"([$%\w.]+)\s*:(?!:)\s*(.*)", re.DOTALL)
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?", re.DOTALL)
TOOLKIT = re.compile(r"/include/|(?:cuda_[bf][fp]\d+|sm_\d+_\w+|device_\w+|math_functions\w*|mma)\.hp{0,2}$")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')

Place = tuple[int, int, int]  # file number, line, column


@dataclass(frozen=True)
class Statement:
    """text: an instruction or directive without its ";", "name:" for a label, "{" or "}" for a scope."""

    text: str
    line: int  # 1-based line of the PTX text
    place: Place | None  # where .loc says that it comes from
    declares_only: bool = False  # a function header that ends with ";" instead of a body


@dataclass
class Text:
    """All statements of one PTX text, and what .file and .loc say about their origin."""

    statements: list[Statement] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    callers: dict[Place, Place] = field(default_factory=dict)  # place of inlined code -> place of its call

    def origin(self, place: Place | None) -> tuple[str, int]:
        """File and line that a reader wants to see: code inlined from the toolkit's headers counts for its caller."""
        seen: set[Place] = set()
        while place in self.callers and place not in seen and self._in_toolkit(place):
            seen.add(place)
            place = self.callers[place]
        if place is None:
            return "", 0
        return self.files.get(place[0], ""), place[1]

    def _in_toolkit(self, place: Place) -> bool:
        return TOOLKIT.search(self.files.get(place[0], "").replace("\\", "/")) is not None


def split(ptx: str) -> Text:
    """Split PTX into statements; comments, debug sections and the directives about lines are taken out."""
    text = Text()
    scanner = _Scanner(text)
    for token in TOKEN.findall(ptx):
        scanner.take(token)
    scanner.finish()
    return text


class _Scanner:
    """Collects tokens until a statement is whole."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.pieces: list[str] = []
        self.line = 1
        self.start = 1
        self.place: Place | None = None
        self.depth = 0  # of braces inside one statement: a vector operand or an initial value
        self.section_depth = 0  # of braces inside a .section, which is skipped

    def take(self, token: str) -> None:
        if token.startswith(("//", "/*")):
            self.line += token.count("\n")
        elif token == "\n":
            self.line += 1
            if self.pieces and not self.depth and self._ends_with_line(self.current()):
                self.finish()
            elif self.pieces:
                self.pieces.append(" ")
        elif token == ";" and not self.section_depth:
            self.finish(ended=True)
        elif token in "{}":
            self.brace(token)
        elif self.pieces or token.strip():
            if not self.pieces:
                self.start = self.line
            self.pieces.append(token)

    @staticmethod
    def _ends_with_line(current: str) -> bool:
        return current.split(" ", 1)[0] in LINE_DIRECTIVES or current.endswith(":")

    def current(self) -> str:
        return " ".join("".join(self.pieces).split())

    def brace(self, token: str) -> None:
        current = self.current()
        if self.section_depth or current.startswith(".section"):
            self.section_depth += 1 if token == "{" else -1
            if not self.section_depth:
                self.pieces = []
            return
        opens_scope = token == "{" and (not current or current.endswith(":") or _is_function(current))
        if self.depth or not (opens_scope or token == "}"):
            self.depth += 1 if token == "{" else -1
            self.pieces.append(token)
            return
        self.finish()
        self.text.statements.append(Statement(token, self.line, self.place))

    def finish(self, ended: bool = False) -> None:
        """Hand over the statement collected so far; ended: by ";"."""
        current = self.current()
        self.pieces, self.depth = [], 0
        while match := LABEL.fullmatch(current):
            self.text.statements.append(Statement(match[1] + ":", self.start, self.place))
            current = match[2]
        if current.startswith(".loc "):
            self.locate(current)
        elif match := FILE.match(current):
            self.text.files[int(match[1])] = match[2]
        elif current:
            self.text.statements.append(Statement(current, self.start, self.place, declares_only=ended))

    def locate(self, directive: str) -> None:
        match = LOCATION.match(directive)
        if match is None or match[2] == "0":  # line 0: made by the compiler; the last real line stands nearer
            return
        self.place = (int(match[1]), int(match[2]), int(match[3]))
        if match[4]:
            self.text.callers[self.place] = (int(match[4]), int(match[5]), int(match[6]))


def _is_function(current: str) -> bool:
    return ".entry" in current.split("(")[0] or ".func" in current.split("(")[0]
