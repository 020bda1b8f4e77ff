"""A model without numbers that notices every mistake of the bookkeeping.

It keeps a *shadow* of the KV pool (which token was written to which offset of which page) and of the recurrent state
(how many tokens, and a digest of them, per slot). The next token is a hash of all tokens read back through the page
table, so a page that is shared, freed, stale or never written changes the answer, and is reported on the spot.
"""

from __future__ import annotations

import random
from zlib import crc32

from labkit.engine.scheduler import Batch, Chunk, Scheduler, SchedulerConfig
from labkit.engine.sequence import Sequence

VOCABULARY = 50_000


def draw_seed() -> None:
    """Seed ``random`` afresh and print the seed, which pytest shows with a failure."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.seed({seed})")
    random.seed(seed)


def add(scheduler: Scheduler, *lengths: tuple[int, int]) -> list[Sequence]:
    """Sequences of (prompt length, max_tokens) with random prompts."""
    first = scheduler._arrivals
    seqs = [
        Sequence(first + i, [random.randrange(VOCABULARY) for _ in range(prompt)], max_tokens)
        for i, (prompt, max_tokens) in enumerate(lengths)
    ]
    for seq in seqs:
        scheduler.add(seq)
    return seqs


def plan(batch: Batch) -> list[tuple[int, int, int]]:
    """(sequence, first token, tokens) of each chunk."""
    return [(chunk.seq.seq_id, chunk.start, chunk.length) for chunk in batch.chunks]


def digest(tokens: list[int], start: int = 0) -> int:
    """A checksum that can be continued: ``digest(a + b) == digest(b, digest(a))``."""
    return crc32(b"".join(token.to_bytes(4, "little") for token in tokens), start)


def next_token(tokens: list[int]) -> int:
    return digest(tokens) % VOCABULARY


def answer_alone(prompt: list[int], max_tokens: int, max_seq_len: int) -> list[int]:
    """What the shadow model answers to ``prompt`` with nobody beside it, computed without any scheduler."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_tokens, max_seq_len):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ShadowModel:
    """Computes batches: ``run(batch) -> {sequence id: token}``."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.page_size = config.page_size
        self.kv: list[list[int | None]] = [[None] * config.page_size for _ in range(config.num_pages)]
        self.state: list[tuple[int, int]] = [(0, 0)] * config.max_running

    def run(self, batch: Batch) -> dict[int, int]:
        for chunk in batch.chunks:
            self.compute(chunk)
        return {chunk.seq.seq_id: self.sample(chunk.seq) for chunk in batch.chunks if chunk.samples}

    def compute(self, chunk: Chunk) -> None:
        seq, end = chunk.seq, chunk.start + chunk.length
        tokens = seq.token_ids(chunk.start, end)
        assert len(tokens) == chunk.length
        for position, token in enumerate(tokens, chunk.start):
            self.kv[seq.pages[position // self.page_size]][position % self.page_size] = token
        self._advance_state(seq, chunk.start, tokens)

    def _advance_state(self, seq: Sequence, start: int, tokens: list[int]) -> None:
        assert seq.slot is not None
        count, value = (0, 0) if start == 0 else self.state[seq.slot]
        assert count == start, f"state of {seq.seq_id} holds {count} tokens, its chunk starts at {start}"
        self.state[seq.slot] = (count + len(tokens), digest(tokens, value))

    def sample(self, seq: Sequence) -> int:
        read = [self.kv[seq.pages[i // self.page_size]][i % self.page_size] for i in range(len(seq))]
        assert read == seq.token_ids(0, len(seq)), f"sequence {seq.seq_id} reads foreign or stale KV"
        assert seq.slot is not None
        assert self.state[seq.slot] == (len(seq), digest(seq.token_ids(0, len(seq))))
        return next_token(seq.token_ids(0, len(seq)))


def run_step(scheduler: Scheduler, model: ShadowModel) -> Batch:
    """One whole step, with the books checked around it."""
    batch = scheduler.schedule()
    scheduler.check_invariants()
    scheduler.postprocess(batch, model.run(batch))
    scheduler.check_invariants()
    return batch


def run_until_done(scheduler: Scheduler, model: ShadowModel, max_steps: int = 10_000) -> list[Batch]:
    batches: list[Batch] = []
    while scheduler.has_work:
        assert len(batches) < max_steps, "no end in sight"
        batches.append(run_step(scheduler, model))
    return batches
