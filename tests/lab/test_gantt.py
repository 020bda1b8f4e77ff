"""The Gantt picture says what the scheduler did, in SVG, in text and in words."""

from __future__ import annotations

import random
from collections import Counter
from xml.etree import ElementTree

import pytest

from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.engine.sequence import Sequence
from labkit.lab.gantt import GanttRecorder, Mark, gantt_svg, gantt_text, play
from labkit.lab.picture import SvgPicture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def fresh_inputs() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.seed({seed})")
    random.seed(seed)


def tiny_pool() -> GanttRecorder:
    config = SchedulerConfig(num_pages=4, max_running=2, max_seq_len=50, page_size=4, prefill_tokens=6)
    arrivals = [(0, Sequence(0, [1] * 5, 9)), (0, Sequence(1, [1] * 6, 4)), (2, Sequence(2, [1] * 3, 1))]
    recorder = play(Scheduler(config), arrivals)
    recorder.names |= {0: "A", 1: "<B&>", 2: "C"}
    return recorder


def test_text_gantt_of_a_preemption() -> None:
    assert gantt_text(tiny_pool()).splitlines() == [
        "step 0  1  2 3 4 5 6 7 8 9  10",
        "A    P5 D  D D D D D D D .  .",
        "<B&> P1 P5 D D X W W W W P6 P3",
        "C    .  .  W W W W W W W W  P3",
        "W waits, P prefills (tokens), D decodes one token, X is preempted",
    ]


def test_svg_is_well_formed_and_carries_the_alt_text() -> None:
    data, metadata = gantt_svg(tiny_pool())._repr_mimebundle_()
    root = ElementTree.fromstring(data["image/svg+xml"])
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("aria-label") == metadata["image/svg+xml"]["alt"]
    assert "<B&> waits 4" in root.attrib["aria-label"] and "is preempted 1" in root.attrib["aria-label"]
    assert data["text/plain"] == gantt_text(tiny_pool())


def test_svg_has_one_lettered_cell_for_each_entry() -> None:
    recorder = tiny_pool()
    root = ElementTree.fromstring(gantt_svg(recorder).svg)
    drawn = Counter(text.text for text in root.iter(f"{SVG}text"))
    expected = Counter(cell.label for row in recorder.rows.values() for cell in row.values())
    legend = Counter(mark.value for mark in Mark)
    expected.update(legend)
    assert {label: drawn[label] for label in expected} == dict(expected)
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke")]
    assert len(boxes) == expected.total()


def test_nothing_is_drawn_outside_the_picture() -> None:
    root = ElementTree.fromstring(gantt_svg(tiny_pool()).svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke")]:
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_every_computed_token_appears_in_the_picture() -> None:
    seqs = [Sequence(i, [1] * random.randint(1, 30), random.randint(1, 9)) for i in range(10)]
    config = SchedulerConfig(num_pages=100, max_running=4, max_seq_len=50, page_size=4, prefill_tokens=16)
    recorder = play(Scheduler(config), [(random.randint(0, 9), seq) for seq in seqs])
    for seq in seqs:
        assert sum(cell.tokens for cell in recorder.rows[seq.seq_id].values()) == seq.num_computed == len(seq) - 1
        assert recorder.count(seq.seq_id, Mark.DECODE) == seq.max_tokens - 1


def test_an_empty_recorder_draws_an_empty_chart() -> None:
    picture = gantt_svg(GanttRecorder())
    assert "0 requests over 0 steps" in picture.alt
    ElementTree.fromstring(picture.svg)


def test_a_run_that_does_not_end_raises() -> None:
    scheduler = Scheduler(SchedulerConfig(num_pages=9, max_running=1, max_seq_len=50))
    with pytest.raises(RuntimeError, match="1 running and 0 waiting after 5 steps"):
        play(scheduler, [(0, Sequence(0, [1], 20))], max_steps=5)


def test_picture_refuses_what_is_no_svg() -> None:
    with pytest.raises(ValueError, match="<svg"):
        SvgPicture(svg="<p>no</p>", alt="", text="")


def test_picture_escapes_its_alt_text() -> None:
    picture = SvgPicture(svg='<svg xmlns="http://www.w3.org/2000/svg"></svg>', alt='a "quoted" <b> & c', text="words")
    data, _ = picture._repr_mimebundle_()
    assert ElementTree.fromstring(data["image/svg+xml"]).get("aria-label") == 'a "quoted" <b> & c'
    assert repr(picture) == "words"
