"""CUDA source beside the PTX that came of it, with what each line cost in a run on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from labkit.lab.flipbook import Flipbook
from labkit.sim.counters import Counters, SiteCounts

HEADINGS = ("warp instr.", "sectors", "bank conflicts")
STYLE = "padding:0 .6em;vertical-align:top;text-align:"


@dataclass(frozen=True)
class Line:
    """A line of the source: its text, the PTX made of it, and its counts: one for each of HEADINGS."""

    number: int
    text: str
    ptx: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """One kernel after a run. files: name -> the lines of that source file, the kernel's own file first."""

    title: str
    files: dict[str, tuple[Line, ...]]
    mime: str = "text/html"

    @property
    def text(self) -> str:
        """Plain text: the lines that PTX was made of, and their counts."""
        parts = [self.title, f"{'line':>5} " + "".join(f"{heading:>15}" for heading in HEADINGS)]
        for name, lines in self.files.items():
            parts += [name, *(_text_line(line) for line in lines if line.ptx)]
        return "\n".join(parts)

    @property
    def alt(self) -> str:
        """What the tables are, in a sentence."""
        return f"The source of {self.title}, line by line, with what each line cost: {', '.join(HEADINGS)}."

    @property
    def html(self) -> str:
        """A table for each file; the PTX of a line unfolds."""
        tables = "".join(_html_table(name, lines) for name, lines in self.files.items())
        return f"<h4>{escape(self.title)}</h4>{tables}"

    @property
    def ptx(self) -> list[str]:
        """All PTX instructions, in the order of the source."""
        return [instruction for lines in self.files.values() for line in lines for instruction in line.ptx]


def page(title: str, source: str, counters: Counters, headers: Mapping[str, str] | None = None) -> Page:
    """Lay the counts of a run beside the source that was compiled for it.

    headers: name in the #include -> text, of those whose lines should show as well.
    Files of which no instruction came are left out, the kernel's own apart.
    """
    by_file: dict[str, dict[int, list[tuple[str, SiteCounts]]]] = {}
    for site, counts in counters.by_site():
        by_file.setdefault(site.file, {}).setdefault(site.line, []).append((site.text, counts))
    included = dict(headers or {})
    owned = {name: _header_of(name, included) for name in by_file}
    own = next((name for name, header in owned.items() if header is None and name), "")
    files = {title: _lines(source, by_file.get(own, {}))}
    files |= {header: _lines(included[header], by_file[name]) for name, header in owned.items() if header}
    return Page(title, files)


def _header_of(file: str, headers: Mapping[str, str]) -> str | None:
    """Which header a file of the line table is: the compiler may put a folder in front of its name."""
    return next((header for header in headers if file == header or file.endswith(f"/{header}")), None)


def _lines(source: str, sites: Mapping[int, list[tuple[str, SiteCounts]]]) -> tuple[Line, ...]:
    return tuple(_line(number, text, sites.get(number, [])) for number, text in enumerate(source.splitlines(), 1))


def _line(number: int, text: str, sites: Sequence[tuple[str, SiteCounts]]) -> Line:
    total = SiteCounts()
    for _, counts in sites:
        total.add(counts)
    sectors = total.global_load.sectors + total.global_store.sectors + total.global_atomic.sectors
    lost = total.shared_load.conflicts + total.shared_store.conflicts + total.shared_atomic.conflicts
    return Line(number, text, tuple(ptx for ptx, _ in sites), (total.warp_instructions, sectors, lost))


def _text_line(line: Line) -> str:
    counts = "".join(f"{count or '':>15}" for count in line.counts)
    return f"{line.number:5} {counts}  {line.text.strip()}".rstrip()


def _html_table(name: str, lines: Sequence[Line]) -> str:
    head = "".join(f'<th scope="col" style="{STYLE}right">{heading}</th>' for heading in HEADINGS)
    rows = "".join(_html_row(line) for line in lines)
    titles = f'<th scope="col">line</th>{head}<th scope="col" style="{STYLE}left">source, and its PTX</th>'
    return f"<table><caption>{escape(name)}: counted by the simulator</caption><tr>{titles}</tr>{rows}</table>"


def _html_row(line: Line) -> str:
    counts = "".join(f'<td style="{STYLE}right">{count or ""}</td>' for count in line.counts)
    code = f'<code style="white-space:pre">{escape(line.text)}</code>'
    if line.ptx:
        instructions = escape("\n".join(line.ptx))
        code = f"<details><summary>{code}</summary><pre>{instructions}</pre></details>"
    return f'<tr><td style="{STYLE}right">{line.number}</td>{counts}<td style="{STYLE}left">{code}</td></tr>'


def kernel_explorer(pages: Sequence[Page]) -> Flipbook:
    """The pages with a slider from kernel to kernel. Raises ValueError without pages."""
    return Flipbook(pages, "kernel")
