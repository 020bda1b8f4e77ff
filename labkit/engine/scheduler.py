"""Continuous batching: which tokens of which sequences are computed in the next step.

A step first gives every decoding sequence its one token, then spends a budget of prefill tokens, oldest sequence
first. Memory is taken page by page; when the pool is empty the youngest running sequence gives everything back and
is recomputed later (its tokens are kept, so recomputing costs time and changes nothing).

Why every sequence finishes: ``add`` refuses what does not fit into the whole pool by itself, the oldest running
sequence is never preempted for a younger one, and nobody overtakes in the queue.

Sparse prefill chooses pages for tiles of 64 rows. A long prompt is cut between these only, so that budgets, neighbours
and preemption do not change what it keeps. Recomputed output begins a chunk of its own: it attends to everything.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping
from operator import attrgetter

from labkit.engine.batch import Batch, Chunk
from labkit.engine.pages import PageAccountingError, PageAllocator, SlotAllocator, pages_for
from labkit.engine.scheduler_config import SchedulerConfig
from labkit.engine.sequence import FinishReason, Sequence, Status
from labkit.errors import EmptyPromptError, PromptTooLongError, RequestError

__all__ = ["Batch", "Chunk", "Scheduler", "SchedulerConfig"]

_by_arrival = attrgetter("arrival")


class Scheduler:
    """Owns the queue, the running sequences and the books of both pools; holds no tensor.

    A step is ``batch = schedule()``, the model's work, then ``postprocess(batch, tokens)``, or ``rollback(batch)``
    if that work failed. ``abort`` and ``finish`` are valid at any time, also in between.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.pages = PageAllocator(config.num_pages)
        self.slots = SlotAllocator(config.max_running)
        self._live: dict[int, Sequence] = {}
        self._arrivals = 0
        self._steps = 0

    @property
    def has_work(self) -> bool:
        """True while a sequence waits or runs; then ``schedule`` always finds something to compute."""
        return bool(self._live)

    # Arrivals

    def add(self, seq: Sequence) -> None:
        """Queue a sequence.

        Raises EmptyPromptError, PromptTooLongError or RequestError (id in use) for one that can never run; then
        nothing has changed for the others.
        """
        self._check_admissible(seq)
        seq.arrival = self._arrivals
        self._arrivals += 1
        self._live[seq.seq_id] = seq
        self.waiting.append(seq)

    def _check_admissible(self, seq: Sequence) -> None:
        prompt, limit = len(seq.prompt_ids), self.config.max_seq_len
        if seq.seq_id in self._live:
            raise RequestError(f"Request {seq.seq_id} is already there.", cure="Give each request its own id.")
        if seq.max_tokens < 1:
            raise RequestError(f"max_tokens is {seq.max_tokens}.", cure="Ask for at least one token.")
        if prompt == 0:
            raise EmptyPromptError("The prompt has no token.", cure="Give at least one token.")
        if prompt >= limit:
            raise PromptTooLongError(
                f"The prompt has {prompt} tokens, but a sequence holds at most {limit}, one of them generated.",
                cure=f"Shorten the prompt to {limit - 1} tokens or raise max_seq_len.",
            )
        self._check_fits_pool(min(prompt + seq.max_tokens, limit))

    def _check_fits_pool(self, total: int) -> None:
        capacity = self.config.num_pages * self.config.page_size
        if self._pages_for(total) > self.config.num_pages:
            raise PromptTooLongError(
                f"Prompt and output may reach {total} tokens, but the whole KV pool holds {capacity}.",
                cure="Shorten the prompt, lower max_tokens, or give the engine a larger KV pool.",
            )

    # A step

    def schedule(self) -> Batch:
        """Plan the next step: decodes, then prefills under way, then newcomers. Takes their pages and slots."""
        preempted: list[Sequence] = []
        decodes = self._schedule_decodes(preempted)
        budget = self.config.mixed_prefill_tokens if decodes else self.config.prefill_tokens
        prefills = self._schedule_prefills(budget)
        self._steps += 1
        return Batch((*decodes, *prefills), len(decodes), tuple(preempted), self._steps - 1)

    def _schedule_decodes(self, preempted: list[Sequence]) -> list[Chunk]:
        """One token for each decoding sequence, oldest first, so that victims have no chunk in this step yet."""
        chunks: list[Chunk] = []
        for seq in list(self.running):
            if seq.decoding and self._make_room(seq, preempted):
                chunks.append(Chunk(seq, seq.num_computed, 1))
        return chunks

    def _make_room(self, seq: Sequence, preempted: list[Sequence]) -> bool:
        """Give ``seq`` the page of its next token; False if it was itself the youngest and had to go."""
        missing = self._pages_for(len(seq)) - len(seq.pages)
        while missing > self.pages.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            preempted.append(victim)
            if victim is seq:
                return False
        seq.pages += self.pages.allocate(missing)
        return True

    def _schedule_prefills(self, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for seq in [seq for seq in self.running if not seq.decoding]:
            budget = self._add_prefill(seq, budget, chunks)
        while budget and self.waiting and self._can_admit(seq := self.pick_next(), budget):
            self._admit(seq)
            budget = self._add_prefill(seq, budget, chunks)
        return sorted(chunks, key=lambda chunk: chunk.seq.arrival)

    def _add_prefill(self, seq: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Returns the budget for those behind: none where this one was cut, so that only one ever is half done."""
        end = self._reach(seq, budget)  # the half done one is first, and its whole budget holds a tile
        chunks.append(Chunk(seq, seq.num_computed, end - seq.num_computed, self._is_sparse(seq)))
        return budget - chunks[-1].length if end == len(seq) else 0

    def _reach(self, seq: Sequence, budget: int) -> int:
        """Where a chunk of at most ``budget`` tokens ends. In a sparse prompt that is between two tiles or its end."""
        end, prompt = seq.num_computed + min(seq.num_uncomputed, budget), len(seq.prompt_ids)
        if not self._is_sparse(seq):
            return end
        return prompt if end >= prompt else end - end % self.config.tile_size

    def _is_sparse(self, seq: Sequence) -> bool:
        """Whether its next token is one of a prompt that prefills sparsely."""
        threshold, prompt = self.config.sparse_threshold, len(seq.prompt_ids)
        return threshold is not None and threshold <= prompt and seq.num_computed < prompt

    def pick_next(self) -> Sequence:
        """The waiting sequence to admit next: the oldest. If it does not fit, nobody is admitted."""
        return self.waiting[0]

    def _can_admit(self, seq: Sequence, budget: int) -> bool:
        """Room for all its tokens and the one it samples, or it would be thrown out at once; and budget for a chunk."""
        fits = self.slots.num_free > 0 and self._pages_for(len(seq) + 1) <= self.pages.num_free
        return fits and self._reach(seq, budget) > seq.num_computed

    def _admit(self, seq: Sequence) -> None:
        self.waiting.remove(seq)
        seq.pages = self.pages.allocate(self._pages_for(len(seq) + 1))
        [seq.slot] = self.slots.allocate(1)
        seq.prefill_len = len(seq)
        seq.status = Status.RUNNING
        insort(self.running, seq, key=_by_arrival)

    def postprocess(self, batch: Batch, tokens: Mapping[int, int]) -> None:
        """Take note of a finished step.

        tokens: sequence id -> new token, for each chunk that samples. Sequences that were aborted or finished
        since ``schedule`` are passed over. Ends with LENGTH what has reached ``max_tokens`` or ``max_seq_len``.
        """
        for chunk in batch.chunks:
            if chunk.seq.status is Status.RUNNING:
                chunk.seq.num_computed = chunk.start + chunk.length
                if chunk.samples:
                    self._append(chunk.seq, tokens[chunk.seq.seq_id])

    def _append(self, seq: Sequence, token: int) -> None:
        seq.output_ids.append(token)
        if len(seq.output_ids) >= seq.max_tokens or len(seq) >= self.config.max_seq_len:
            self.finish(seq, FinishReason.LENGTH)

    def rollback(self, batch: Batch) -> None:
        """The step failed half-way: recompute its sequences, for nobody knows what it has written."""
        for chunk in batch.chunks:
            if chunk.seq.status is Status.RUNNING:
                self._preempt(chunk.seq)

    def _preempt(self, seq: Sequence) -> None:
        """Back to the front of the queue, with its tokens but without pages and slot."""
        self.running.remove(seq)
        self._release(seq)
        seq.num_computed = seq.prefill_len = 0
        seq.num_preemptions += 1
        seq.status = Status.WAITING
        insort(self.waiting, seq, key=_by_arrival)

    # Endings

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """End a sequence and free what it holds; a second call does nothing, except that STOP overrules LENGTH:
        an answer whose end token is the last one allowed is complete."""
        if seq.status is Status.FINISHED:
            if (seq.finish_reason, reason) == (FinishReason.LENGTH, FinishReason.STOP):
                seq.finish_reason = reason
            return
        (self.running if seq.status is Status.RUNNING else self.waiting).remove(seq)
        self._release(seq)
        del self._live[seq.seq_id]
        seq.status, seq.finish_reason = Status.FINISHED, reason

    def abort(self, seq_id: int) -> Sequence | None:
        """End the sequence with this id, in whatever state; None if it is unknown or has ended already."""
        seq = self._live.get(seq_id)
        if seq is not None:
            self.finish(seq, FinishReason.ABORT)
        return seq

    def _release(self, seq: Sequence) -> None:
        self.pages.free(seq.pages)
        seq.pages = []
        if seq.slot is not None:
            self.slots.free([seq.slot])
            seq.slot = None

    def _pages_for(self, num_tokens: int) -> int:
        return pages_for(num_tokens, self.config.page_size)

    # Self-test

    def check_invariants(self) -> None:
        """Raise PageAccountingError unless the books balance; for tests, O(pages)."""
        broken = [rule for rule, holds in self._invariants().items() if not holds]
        if broken:
            raise PageAccountingError(f"broken: {'; '.join(broken)}")

    def _invariants(self) -> dict[str, bool]:
        running, queue = self.running, list(self.waiting)
        return {
            "each page is free or in one page table": self.pages.balances([p for s in running for p in s.pages]),
            "each slot is free or held once": self.slots.balances([s.slot for s in running if s.slot is not None]),
            "every running sequence has a slot": all(s.slot is not None for s in running),
            "what runs is marked so": all(s.status is Status.RUNNING for s in running),
            "what waits is marked so": all(s.status is Status.WAITING for s in queue),
            "what waits holds nothing": all(not s.pages and s.slot is None and s.num_computed == 0 for s in queue),
            "pages cover what is computed": all(self._pages_for(s.num_computed) <= len(s.pages) for s in running),
            "both lists are in order of arrival": all(x == sorted(x, key=_by_arrival) for x in (running, queue)),
            "what lives waits or runs, once": sorted(self._live) == sorted(s.seq_id for s in [*running, *queue]),
        }
