"""One replica of a continuous-batching engine, step by step, as vLLM's V1 scheduler does it (0.32,
v1/core/sched/scheduler.py): every sequence that decodes gets one token, then prompts under way get chunks, then waiting
requests are admitted, until the step's token budget, the sequences or the blocks are used up. Where running sequences
lack a block, the last admitted one (priority policy: the least urgent) gives all of its up, waits in front and is
computed anew.

What decodes is kept as sums, not as sequences: a step costs O(what changes), and steps in which nothing changes are
taken at once. With `d` the number of decode steps so far, a sequence that has computed c tokens keeps `base = c - d`
while it decodes, ends when d reaches a number known at its first token, and needs a new block whenever base + d is a
multiple of the block size: counts by `-base` modulo the block size say how many do so at once.

Two deviations. Decodes always come before chunks; vLLM goes in order of admission, which differs where several prompts
under `long_prefill_token_threshold` together exceed the budget. With the priority policy, a running request that has to
preempt itself ends vLLM's loop, so that those admitted after it miss one step; here they do not.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_outcome import Ledger
from phasemeter.predict.whatif_prefix import Openings, Pool, PrefixCache
from phasemeter.predict.whatif_times import DecodeTimes, Line, checked_s, steps_s, steps_until

_ENDLESS = 1 << 60


class Replica:
    """Its queue, its running requests, and the span of steps under way. `ledger` is told what happens to requests."""

    def __init__(
        self, settings: EngineSettings, model: StepModel, times: DecodeTimes, traffic: Traffic, ledger: Ledger
    ) -> None:
        self._settings, self._model, self._times, self._ledger = settings, model, times, ledger
        self._prompt, self._output = traffic.input_tokens, traffic.output_tokens
        self._openings: Sequence[Openings] | None = traffic.openings if settings.prefix_caching else None
        self._urgent = traffic.priority if settings.policy == "priority" else None
        blocks = _ENDLESS if settings.kv_blocks is None else settings.kv_blocks
        self.pool = Pool(blocks, blocks)
        self._spare = 0 if settings.kv_blocks is None else int(settings.watermark * blocks)
        self._cache = PrefixCache(self.pool, settings.block_size)
        self._waiting: deque[int] = deque()
        self._heap: list[tuple[int, float, int]] = []
        self.running: dict[int, None] = {}
        self._partial: list[int] = []
        self._computed: dict[int, int] = {}
        """Of those whose prompt is under way; of those that decode it is base + d."""
        self._base: dict[int, int] = {}
        self._ends_at: dict[int, int] = {}
        self._mine: dict[int, int] = {}
        """Blocks of each running request that are its own, not a shared opening's; while it decodes, less those of all
        it has computed."""
        self._done: dict[int, int] = {}
        """Tokens generated before a preemption."""
        self._ends: list[tuple[int, int]] = []
        self._d = self._sequences = self._context = 0
        self._cross = [0] * settings.block_size
        self._chunks: list[tuple[int, int]] = []
        self._line: Line | None = None
        self._decoding = 0
        self.start_s = self.end_s = 0.0
        self.steps = 0
        """Steps of the span under way; 0: idle."""
        self.firsts: list[int] = []
        """Requests whose first token came with the last span."""

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting) + len(self._heap)

    def enqueue(self, i: int) -> None:
        """Request `i` arrives at the engine."""
        if self._urgent is None:
            self._waiting.append(i)
        else:
            heapq.heappush(self._heap, (self._urgent[i], self._ledger.arrived_s[i], i))

    def begin(self, now_s: float) -> bool:
        """Schedule the next step, or as many as are alike; False where there is nothing to do."""
        self.start_s = now_s
        self._chunks = []
        preempted = self._make_room()
        budget = self._settings.max_num_batched_tokens - self._sequences
        work: list[tuple[int, int]] = []
        if self._partial:
            budget, lost = self._go_on(budget, work)
            preempted = preempted or lost
        if not preempted and (self._waiting or self._heap) and budget > 0:
            self._admit(budget, work, now_s)
        self._decoding = self._sequences
        if work:
            self._mixed(work)
        elif self._sequences:
            self._alike(1 if preempted else _ENDLESS)
        else:
            self.steps = 0
            return False
        return True

    def cut(self, now_s: float) -> bool:
        """A request has come in the middle of a span: end it with the step under way. False where that changes
        nothing."""
        if self.steps <= 1 or len(self.running) >= self._settings.max_num_seqs or self._line is None:
            return False
        steps = steps_until(self._line, self._sequences, self._context, now_s - self.start_s, self.steps)
        if steps == self.steps:
            return False
        self.steps = steps
        self.end_s = self.start_s + steps_s(self._line, self._sequences, self._context, steps)
        return True

    def complete(self) -> list[int]:
        """The span has ended: move everything on by it. The requests that ended with it."""
        if self._decoding:
            self._advance()
        self.firsts.clear()
        ended = self._ended() if self._ends else []
        for i, tokens in self._chunks:
            self._computed[i] += tokens
            if self._computed[i] == self._prompt[i] + self._done.get(i, 0):
                self._partial.remove(i)
                if self._first(i):
                    ended.append(i)
        self._chunks = []
        return ended

    # ---- one step

    def _make_room(self) -> bool:
        """The block that each decoding sequence may need for the coming step; whether somebody lost theirs."""
        lost = False
        pool, place = self.pool, self._d % self._settings.block_size
        while self._cross[place] > pool.free:
            self._preempt(self._victim())
            lost = True
        if self._sequences and self._cross[place]:
            pool.allocate(self._cross[place])
        return lost

    def _go_on(self, budget: int, work: list[tuple[int, int]]) -> tuple[int, bool]:
        """Chunks of the prompts under way, in order of admission. (Budget left, whether somebody was preempted.)"""
        lost = False
        for i in tuple(self._partial):
            if budget <= 0:
                break
            if i not in self.running:  # preempted by one before it
                continue
            done = self._computed[i]
            tokens = min(self._piece(self._prompt[i] + self._done.get(i, 0) - done), budget)
            needed = self._blocks(done + tokens) - self._blocks(done)
            while needed > self.pool.free and i in self.running:
                victim = self._victim()
                budget += self._forget_step(victim, work)
                self._preempt(victim, stepping=True)
                lost = True
            if i not in self.running:
                continue
            self._give(i, done, tokens, needed)
            work.append((tokens, done))
            budget -= tokens
        return budget, lost

    def _admit(self, budget: int, work: list[tuple[int, int]], now_s: float) -> None:
        most = self._settings.max_num_seqs
        while budget > 0 and len(self.running) < most and (self._waiting or self._heap):
            i = self._waiting[0] if self._urgent is None else self._heap[0][2]
            total = self._prompt[i] + self._done.get(i, 0)
            hit, unused = (0, 0) if self._openings is None else self._cache.hit(self._openings[i], total - 1)
            cached = hit * self._settings.block_size
            tokens = self._piece(total - cached)
            if tokens > budget and not self._settings.chunked_prefill:
                return
            tokens = min(tokens, budget)
            reach = total if self._settings.reserve_full_prompt else cached + tokens
            asked = self._blocks(reach) - hit + unused + (self._spare if self.running else 0)
            if asked > self.pool.free:
                return
            if self._urgent is None:
                self._waiting.popleft()
            else:
                heapq.heappop(self._heap)
            self.running[i] = None
            if self._openings is not None:
                self._cache.pin(self._openings[i], hit)
            self._partial.append(i)
            self._computed[i], self._mine[i] = cached, 0
            self._ledger.admitted(i, now_s, cached)
            self._give(i, cached, tokens, self._blocks(cached + tokens) - hit)
            work.append((tokens, cached))
            budget -= tokens

    def _give(self, i: int, done: int, tokens: int, blocks: int) -> None:
        self.pool.allocate(blocks)
        self._mine[i] += blocks
        self._chunks.append((i, tokens))
        if self._openings is not None:
            self._mine[i] -= self._cache.computed(self._openings[i], done + tokens)

    def _piece(self, tokens: int) -> int:
        """What of `tokens` one step may take of a prompt; a request that is alone may take all."""
        most = self._settings.long_prefill_token_threshold
        if most and tokens > most and len(self.running) + self.waiting > 1:
            return most
        return tokens

    def _mixed(self, work: list[tuple[int, int]]) -> None:
        self._line, self.steps = None, 1
        seconds = checked_s(self._model.step_s(work, (self._sequences, self._context)))
        self.end_s = self.start_s + seconds

    def _alike(self, most: int) -> None:
        """As many decode steps as change nothing: until one ends, the line does, or blocks may run out."""
        while self._ends_at.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # of a sequence that was preempted
        n = self._sequences
        line = self._line = self._times.line(n, self._context)
        steps = min(most, self._ends[0][0] - self._d, (line.high - self._context) // n + 1)
        if steps > 1 and self.pool.free < n * (-(-steps // self._settings.block_size)):
            steps = self._steps_with_room(steps)
        self.steps = steps
        self.end_s = self.start_s + steps_s(line, n, self._context, steps)

    def _steps_with_room(self, most: int) -> int:
        """Steps until the free blocks may be used up; those of the first step are taken already."""
        free, size = self.pool.free, self._settings.block_size
        for step in range(1, most):
            free -= self._cross[(self._d + step) % size]
            if free < 0:
                return step
        return most

    # ---- what a span leaves behind

    def _advance(self) -> None:
        steps, size = self.steps, self._settings.block_size
        if steps > 1:
            whole, rest = divmod(steps - 1, size)
            blocks = whole * self._sequences
            for step in range(1, rest + 1):
                blocks += self._cross[(self._d + step) % size]
            if blocks:
                self.pool.allocate(blocks)
        self._ledger.decoded((self.end_s - self.start_s) / steps, steps * self._sequences)
        self._d += steps
        self._context += steps * self._sequences

    def _ended(self) -> list[int]:
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= self._d:
            at, i = heapq.heappop(self._ends)
            if self._ends_at.get(i) == at:
                self._free(i, self._blocks(self._leave_decoding(i)))
                self._ledger.ended(i, self.end_s)
                ended.append(i)
        return ended

    def _first(self, i: int) -> bool:
        """The prompt of `i` is computed and its next token there; whether it was the last."""
        self._ledger.token(i, self.end_s)
        done = self._done.pop(i, 0) + 1
        if done == 1:
            self.firsts.append(i)
        computed = self._computed.pop(i)
        if done == self._output[i]:
            self._free(i)
            self._ledger.ended(i, self.end_s)
            return True
        base = self._base[i] = computed - self._d
        at = self._ends_at[i] = self._d + self._output[i] - done
        heapq.heappush(self._ends, (at, i))
        self._sequences += 1
        self._context += computed + 1
        self._cross[-base % self._settings.block_size] += 1
        self._mine[i] -= self._blocks(computed)
        return False

    def _leave_decoding(self, i: int) -> int:
        """Take `i` out of the sums; the tokens it has computed."""
        base = self._base.pop(i)
        del self._ends_at[i]
        computed = base + self._d
        self._sequences -= 1
        self._context -= computed + 1
        self._cross[-base % self._settings.block_size] -= 1
        return computed

    def _victim(self) -> int:
        if self._urgent is None:
            return next(reversed(self.running))
        urgent, arrived = self._urgent, self._ledger.arrived_s
        return max(self.running, key=lambda i: (urgent[i], arrived[i], i))

    def _forget_step(self, victim: int, work: list[tuple[int, int]]) -> int:
        """Tokens of the step being made that `victim` gives back."""
        if victim in self._base:
            return 1
        for place, (i, tokens) in enumerate(self._chunks):
            if i == victim:
                del self._chunks[place], work[place]
                return tokens
        return 0

    def _preempt(self, victim: int, *, stepping: bool = False) -> None:
        """Take everything from `victim` and let it wait in front. `stepping`: decoding sequences have been given their
        blocks of this step."""
        held = 0
        if victim in self._base:
            computed = self._leave_decoding(victim)
            held = self._blocks(computed + stepping)
            self._done[victim] = computed - self._prompt[victim] + 1
        else:
            self._partial.remove(victim)
            del self._computed[victim]
        self._free(victim, held)
        self._ledger.preempted(victim, self.start_s)
        if self._urgent is None:
            self._waiting.appendleft(victim)
        else:
            heapq.heappush(self._heap, (self._urgent[victim], self._ledger.arrived_s[victim], victim))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._settings.block_size)

    def _free(self, i: int, held: int = 0) -> None:
        del self.running[i]
        self.pool.free += self._mine.pop(i) + held
        if self._openings is not None:
            self._cache.release(self._openings[i])
