"""TextStream: bytes decide, stop strings wait, pieces join to the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers.vocabulary import ByteTokens
from hypothesis import given
from hypothesis import strategies as st

from labkit import SamplingParams
from labkit.engine.text_stream import TextStream


def run(tokens: list[bytes], special: tuple[int, ...] = (), **settings: object) -> tuple[TextStream, list[str], int]:
    """Stream the tokens until a stop; returns the stream, the pieces and the number of tokens taken."""
    stream = TextStream(ByteTokens(tokens, special), SamplingParams(**settings))
    pieces: list[str] = []
    for token in range(len(tokens)):
        if stream.stopped:
            break
        pieces.append(stream.push(token))
    taken = len(pieces)
    return stream, [*pieces, stream.finish()], taken


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    "tokens, pieces",
    [  # case stream-02: a, b, c
        (["6f6b20", "f09f", "9880", "20656e64", "efbfbd"], ["ok ", "", "😀", " end", "\ufffd", ""]),
        (["686920", "f09f"], ["hi ", "", "\ufffd"]),
        (["61", "ff", "6263"], ["a", "\ufffd", "bc", ""]),
    ],
)
def test_bytes_decide_what_a_character_is(tokens: list[str], pieces: list[str]) -> None:
    stream, shown, taken = run([bytes.fromhex(token) for token in tokens])
    assert shown == pieces
    assert stream.text == "".join(pieces)
    assert taken == len(tokens)


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.lists(st.integers(0, 1000), max_size=12))
def test_pieces_join_to_the_decoding_of_all_bytes(data: bytes, cuts: list[int]) -> None:
    stream, pieces, _ = run(chunks(data, cuts))
    assert "".join(pieces) == stream.text == data.decode("utf-8", errors="replace")


@given(st.text(max_size=20), st.lists(st.integers(0, 1000), max_size=12))
def test_no_piece_holds_half_a_character(text: str, cuts: list[int]) -> None:
    stream = TextStream(ByteTokens(parts := chunks(text.encode(), cuts)), SamplingParams())
    shown = ""
    for token in range(len(parts)):
        shown += stream.push(token)
        assert text.startswith(shown)


def test_min_tokens_ignores_an_early_stop_string() -> None:
    # Case sample-02 b.
    stream, _, taken = run([b"a", b"b", b"a", b"b", b"c"], stop="ab", min_tokens=3)
    assert (taken, stream.text, stream.stop_reason) == (4, "ab", "ab")


@pytest.mark.parametrize("min_tokens, taken, text", [(0, 2, ""), (2, 2, ""), (3, 3, "a"), (4, 4, "aa"), (5, 5, "aaa")])
def test_min_tokens_counts_the_token_that_completes_the_stop(min_tokens: int, taken: int, text: str) -> None:
    stream, _, count = run([b"a"] * 5, stop="aa", min_tokens=min_tokens)
    assert (count, stream.text) == (taken, text)


def test_possible_stop_string_is_held_back_until_it_is_decided() -> None:
    _, pieces, _ = run([b"x<", b"|e", b"n", b"!", b"<|", b"end", b"more"], stop="<|end")
    assert pieces == ["x", "", "", "<|en!", "", "", ""]


def test_held_text_is_flushed_at_the_end() -> None:
    stream, pieces, _ = run([b"so", b" EN"], stop=["END", " ENDE"])
    assert pieces == ["so", "", " EN"]
    assert not stream.stopped and stream.stop_reason is None


@pytest.mark.parametrize("include, text", [(False, "one "), (True, "one STOP")])
def test_stop_string_is_cut_off_unless_asked_for(include: bool, text: str) -> None:
    stream, pieces, taken = run([b"one S", b"TO", b"P two", b"three"], stop="STOP", include_stop_str_in_output=include)
    assert stream.text == "".join(pieces) == text
    assert (taken, stream.stop_reason) == (3, "STOP")
    assert stream.push(0) == "" and stream.finish() == "" and stream.text == text


def test_stop_string_in_half_characters() -> None:
    stream, _, taken = run(["é".encode()[:1], "é".encode()[1:] + b"\xf0", b"\x9f\x98", b"\x80x"], stop="😀")
    assert (stream.text, stream.stop_reason, taken) == ("é", "😀", 4)


@pytest.mark.parametrize("stops", [["bc", "abcd"], ["abcd", "bc"]])
def test_the_stop_that_completes_first_wins_however_the_text_is_cut(stops: list[str]) -> None:
    for tokens in ([b"xabcdy"], [b"xab", b"cdy"], [b"x", b"a", b"b", b"c", b"d"]):
        stream, _, _ = run(tokens, stop=stops)
        assert (stream.text, stream.stop_reason) == ("xa", "bc")


def test_of_stops_that_complete_together_the_longest_wins() -> None:
    stream, _, _ = run([b"xab"], stop=["b", "ab"])
    assert (stream.text, stream.stop_reason) == ("x", "ab")


def test_replacement_character_of_the_flush_can_stop_too() -> None:
    stream, _, _ = run([b"a", b"\xf0\x9f"], stop="\ufffd")
    assert (stream.text, stream.stop_reason) == ("a", "\ufffd")


@given(
    st.text("ab", max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 1000), max_size=8),
    st.booleans(),
)
def test_any_cut_gives_the_text_up_to_the_first_complete_stop(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    ends = [(end, -len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    end, minus_length = min(ends, default=(len(text), 0))
    want = text[:end] if include else text[: end + minus_length]
    stream, pieces, _ = run(chunks(text.encode(), cuts), stop=stops, include_stop_str_in_output=include)
    assert stream.text == "".join(pieces) == want
    assert stream.stopped == bool(ends)


@pytest.mark.parametrize("skip, text", [(True, "ab😀"), (False, "a<|im_end|>b\ufffd<s>\ufffd\ufffd")])
def test_special_tokens_are_left_out_if_asked(skip: bool, text: str) -> None:
    tokens = [b"a", b"<|im_end|>", b"b\xf0\x9f", b"<s>", b"\x98\x80"]
    stream, _, _ = run(tokens, special=(1, 3), skip_special_tokens=skip)
    assert stream.text == text
