"""A continuous-batching engine told plainly: one object a request, one block at a time, one step after another, in the
order of vLLM's `Scheduler.schedule`. Slow, and shares no code with the product."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class One:
    index: int
    arrive: float
    prompt: int
    output: int
    priority: int = 0
    hashes: list = field(default_factory=list)
    computed: int = 0
    done: int = 0
    blocks: list = field(default_factory=list)
    scheduled: float | None = None
    first: float | None = None
    end: float | None = None
    cached: int = 0
    preemptions: int = 0
    decoding: bool = False
    stamps: list = field(default_factory=list)

    @property
    def total(self):
        return self.prompt + self.done


class Blocks:
    """Blocks by number, a queue of free ones, and the contents that some still hold."""

    def __init__(self, n):
        self.free = OrderedDict((i, None) for i in range(n))
        self.users = [0] * n
        self.content = {}
        self.of = {}

    def found(self, hashes, most):
        hit = []
        for key in hashes[:most]:
            if key not in self.content:
                break
            hit.append(self.content[key])
        return hit

    def touch(self, blocks):
        for block in blocks:
            if self.users[block] == 0:
                del self.free[block]
            self.users[block] += 1

    def take(self, n):
        taken = []
        for _ in range(n):
            block, _ = self.free.popitem(last=False)
            key = self.of.pop(block, None)
            if key is not None and self.content.get(key) == block:
                del self.content[key]
            self.users[block] = 1
            taken.append(block)
        return taken

    def name(self, block, key):
        if key not in self.content and block not in self.of:
            self.content[key] = block
            self.of[block] = key

    def give(self, blocks):
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free[block] = None


class Naive:
    def __init__(
        self, model, *, seqs, budget, blocks, size, chunked, threshold, watermark, full, policy, caching
    ):
        self.model, self.seqs, self.budget, self.size = model, seqs, budget, size
        self.chunked, self.threshold, self.full, self.policy = chunked, threshold, full, policy
        self.caching = caching
        self.pool = Blocks(blocks)
        self.spare = int(watermark * blocks)
        self.waiting, self.running = [], []

    def add(self, one):
        self.waiting.append(one)
        self.order()

    def order(self):
        if self.policy == "priority":
            self.waiting.sort(key=lambda one: (one.priority, one.arrive, one.index))

    def need(self, tokens, held):
        return max(0, math.ceil(tokens / self.size) - held)

    def schedule(self, now):
        """{request: tokens} of the next step."""
        budget, given = self.budget, {}
        lost = False
        alone = len(self.running) + len(self.waiting) <= 1
        threshold = 0 if alone else self.threshold
        at = 0
        while at < len(self.running) and budget > 0:
            one = self.running[at]
            tokens = one.total - one.computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
            ok = True
            while self.need(one.computed + tokens, len(one.blocks)) > len(self.pool.free):
                if self.policy == "priority":
                    victim = max(self.running, key=lambda o: (o.priority, o.arrive, o.index))
                else:
                    victim = self.running[-1]
                place = self.running.index(victim)
                del self.running[place]
                if place < at:
                    at -= 1
                if victim.index in given:
                    budget += given.pop(victim.index)
                self.pool.give(victim.blocks)
                victim.blocks, victim.computed = [], 0
                victim.preemptions += 1
                victim.decoding = False
                lost = True
                self.waiting.insert(0, victim)
                self.order()
                if victim is one:
                    ok = False
                    break
            if not ok:
                continue  # vLLM breaks, so that those behind it miss this step; last in the list there is none
            self.grow(one, tokens)
            given[one.index] = tokens
            budget -= tokens
            at += 1
        if not lost:
            self.admit(budget, given, threshold, now)
        return given

    def admit(self, budget, given, threshold, now):
        while self.waiting and budget > 0 and len(self.running) < self.seqs:
            one = self.waiting[0]
            hit = self.pool.found(one.hashes, (one.total - 1) // self.size) if self.caching else []
            cached = len(hit) * self.size
            tokens = one.total - cached
            if 0 < threshold < tokens:
                tokens = threshold
            if not self.chunked and tokens > budget:
                break
            tokens = min(tokens, budget)
            spare = self.spare if self.running else 0
            unused = sum(self.pool.users[block] == 0 for block in hit)
            reach = one.total if self.full else cached + tokens
            if self.need(reach, len(hit)) + unused + spare > len(self.pool.free):
                break
            self.waiting.pop(0)
            self.pool.touch(hit)
            one.blocks, one.computed = list(hit), cached
            if one.scheduled is None:
                one.scheduled, one.cached = now, cached
            self.running.append(one)
            self.grow(one, tokens)
            given[one.index] = tokens
            budget -= tokens

    def grow(self, one, tokens):
        one.blocks += self.pool.take(self.need(one.computed + tokens, len(one.blocks)))
        if self.caching:
            for place in range((one.computed + tokens) // self.size):
                if place < len(one.hashes):
                    self.pool.name(one.blocks[place], one.hashes[place])

    def seconds(self, given):
        prefill, sequences, context = [], 0, 0
        for one in self.running:
            if one.index not in given:
                continue
            tokens = given[one.index]
            if one.decoding:
                sequences, context = sequences + 1, context + one.computed + 1
            else:
                prefill.append((tokens, one.computed))
        return self.model.step_s(prefill, (sequences, context))

    def finish(self, given, now):
        ended = []
        for one in list(self.running):
            if one.index not in given:
                continue
            one.computed += given[one.index]
            if one.computed == one.total:
                one.done += 1
                one.decoding = True
                one.stamps.append(now)
                if one.first is None:
                    one.first = now
                if one.done == one.output:
                    one.end = now
                    self.running.remove(one)
                    self.pool.give(one.blocks)
                    one.blocks = []
                    ended.append(one)
        return ended


def play(
    engine: Naive, ones: list[One], *, users: int | None = None, think: float = 0.0, front=lambda n: 0.0
):
    """To the end; open loop by each one's `arrive`, or closed with `users`. `arrive` ends as the engine's arrival."""
    coming = [(one.arrive + front(one.prompt), one.index) for one in ones if users is None]
    following = 0
    if users is not None:
        following = min(users, len(ones))
        coming = [(think + front(ones[i].prompt), i) for i in range(following)]
    coming.sort()
    now, steps = 0.0, []
    while coming or engine.waiting or engine.running:
        if not engine.waiting and not engine.running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, i = coming.pop(0)
            ones[i].arrive = at
            engine.add(ones[i])
        given = engine.schedule(now)
        seconds = engine.seconds(given)
        now += seconds
        steps.append((seconds, given))
        for _ in engine.finish(given, now):
            if users is not None and following < len(ones):
                coming.append((now + think + front(ones[following].prompt), following))
                coming.sort()
                following += 1
    return steps
