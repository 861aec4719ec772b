"""Strands made ahead: how many, when, and which part of the plan."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.drive import Send
from phasemeter.measure.item import Item, Turn
from phasemeter.measure.load import WHOLE, Load, Patience, Share, Stage
from phasemeter.measure.supply import STOCK_STRANDS, Outline, Supply, outlines, planned_cancel
from phasemeter.record.request import Cell, Request

S = 1_000_000_000


class Listed:
    """A workload of given items."""

    def __init__(self, items):
        self._items = items

    def items(self, stage, number):
        del stage, number
        return iter(self._items)


def plain(n):
    return (Item(i, 10, 5) for i in range(n))


def request(item: Item) -> Request:
    return Request(str(item.index), Cell(10, 5), 5, token_ids=(1,))


class Counted:
    """Makes strands and counts them."""

    def __init__(self):
        self.made = 0

    def __call__(self, outline: Outline):
        self.made += 1
        return [Send(request(item)) for item in outline.items]


def test_a_stock_is_made_ahead_and_filled_up_after_a_send():
    make, seen = Counted(), []

    async def main(clock) -> None:
        del clock
        supply = Supply((Outline((item,)) for item in plain(10**9)), make)
        supply.fill()
        assert make.made == STOCK_STRANDS
        for k in range(50):
            seen.append(next(supply)[0].request.id)
            assert make.made == STOCK_STRANDS + k  # nothing is made before the send
            await asyncio.sleep(0)
        assert make.made == STOCK_STRANDS + 50

    run_virtual(main)
    assert seen == [str(i) for i in range(50)]


def test_the_stock_is_bounded_in_tokens():
    make = Counted()
    supply = Supply((Outline((Item(i, 1_000_000, 5),)) for i in itertools.count()), make)
    supply.fill()
    assert make.made == 2


def test_nothing_is_made_while_a_send_is_due_until_half_of_the_stock_is_gone():
    make = Counted()

    async def main(clock) -> None:
        del clock
        supply = Supply((Outline((item,)) for item in plain(10**9)), make, lambda: 1000)
        supply.fill()
        for _ in range(STOCK_STRANDS // 2 - 1):
            next(supply)
            await asyncio.sleep(0)
        assert make.made == STOCK_STRANDS
        for _ in range(100):
            next(supply)
            await asyncio.sleep(0)
        assert make.made > STOCK_STRANDS + 90

    run_virtual(main)


def test_a_plan_shorter_than_the_stock_ends():
    async def main(clock) -> None:
        del clock
        supply = Supply((Outline((item,)) for item in plain(3)), Counted())
        supply.fill()
        assert len(list(supply)) == 3
        unfilled = Supply((Outline((item,)) for item in plain(3)), Counted())
        assert len(list(unfilled)) == 3

    run_virtual(main)


def test_turns_of_one_conversation_are_one_strand_and_two_conversations_are_two():
    items = [Item(i, 10, 5, turn=Turn(f"c{i // 3}", i % 3)) for i in range(6)] + [Item(6, 10, 5)]
    load = Load({}, (Stage(concurrency=1),))
    found = list(outlines(load, Listed(items), Stage(concurrency=1), 0, WHOLE))
    assert [[item.index for item in outline.items] for outline in found] == [[0, 1, 2], [3, 4, 5], [6]]
    mine = [
        [o.items[0].index for o in outlines(load, Listed(items), Stage(concurrency=2), 0, Share(k, 2))]
        for k in (0, 1)
    ]
    assert mine == [[0, 6], [3]]


@pytest.mark.parametrize("stage", [Stage(concurrency=8), Stage(rate_per_s=10.0)])
def test_conversations_of_an_even_number_of_turns_do_not_all_go_to_one_process(stage):
    items = [Item(i, 10, 5, turn=Turn(f"c{i // 2}", i % 2)) for i in range(80)]
    load = Load({}, (stage,))
    parts = [len(list(outlines(load, Listed(items), stage, 0, Share(k, 4)))) for k in range(4)]
    assert parts == [10, 10, 10, 10]


@pytest.mark.parametrize(("slots", "of", "n"), [(2, 5, 10), (5, 2, 23), (8, 4, 3), (1, 3, 7), (7, 7, 50)])
def test_a_closed_loops_requests_go_where_the_slots_are(slots, of, n):
    """A process without a slot could never send its own; one with more slots has more to do."""
    stage = Stage(concurrency=slots, requests=n)
    parts = [
        [o.items[0].index for o in outlines(Load({}, ()), Listed(plain(100)), stage, 0, Share(k, of))]
        for k in range(of)
    ]
    assert sorted(itertools.chain(*parts)) == list(range(n))
    for k, part in enumerate(parts):
        share = Share(k, of)
        assert len(part) == share.dealt(n, slots)
        held = share.part(slots)
        assert n // slots * held <= len(part) <= -(-n // slots) * held


def test_a_stage_ends_with_its_requests_or_its_time_whichever_comes_first():
    load = Load({}, ())
    traced = [Item(i, 10, 5, arrive_ns=i * S) for i in range(100)]
    by_time = list(outlines(load, Listed(traced), Stage(duration_ns=10 * S), 0, WHOLE))
    assert [o.due_ns for o in by_time] == [i * S for i in range(10)]
    by_number = list(outlines(load, Listed(traced), Stage(duration_ns=10 * S, requests=4), 0, WHOLE))
    assert len(by_number) == 4
    rate = Stage(rate_per_s=10.0, requests=7)
    assert len(list(outlines(load, Listed(plain(1000)), rate, 0, WHOLE))) == 7
    first, second = (
        [o.due_ns for o in outlines(load, Listed(plain(1000)), rate, number, WHOLE)] for number in (0, 1)
    )
    assert first != second  # stages differ


def test_a_request_of_one_token_cannot_be_given_up_and_a_short_one_is_cut_before_its_end():
    always = Patience(cancel_ratio=1.0, cancel_after_tokens=8)
    item = Item(0, 10, 5)
    cut = planned_cancel(request(item), item, always, 0)
    assert (cut.cancel_after_tokens, cut.tags) == (4, {"cancel": "planned"})
    one = Request("r", Cell(10, 1), 1, token_ids=(1,))
    assert planned_cancel(one, item, always, 0) is one
    assert planned_cancel(request(item), item, Patience(), 0).cancel_after_tokens is None
