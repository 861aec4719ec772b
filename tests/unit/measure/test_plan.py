"""Grids: every cell in every block, shuffled, reproducible, refused when impossible."""

from __future__ import annotations

from collections import Counter

import pytest

from phasemeter.measure.lengths import parse_counts
from phasemeter.measure.plan import Grid, check_grid, planned_requests, shapes, visits, warmups
from phasemeter.record.errors import InputError


def test_every_block_visits_every_cell_once_and_the_anchor_once_more():
    grid = Grid((64, 128, 256), (16, 32), concurrency=(1, 4), repeats=6)
    plan = visits(grid)
    for block in range(6):
        cells = [v.cell for v in plan if v.cell.block == block]
        assert cells[0].anchor
        assert (cells[0].input_tokens, cells[0].output_tokens, cells[0].concurrency) == (64, 16, 1)
        plain = Counter((c.input_tokens, c.output_tokens, c.concurrency) for c in cells if not c.anchor)
        assert set(plain.values()) == {1}
        assert len(plain) == 12


def test_the_order_differs_from_block_to_block_and_is_the_seeds():
    grid = Grid((1, 2, 3, 4, 5, 6), (1,), repeats=5, anchor=False)
    orders = [tuple(v.cell.input_tokens for v in visits(grid) if v.cell.block == b) for b in range(5)]
    assert len(set(orders)) > 1
    assert visits(grid) == visits(grid)
    assert visits(grid) != visits(Grid((1, 2, 3, 4, 5, 6), (1,), repeats=5, anchor=False, seed=1))


def test_requests_a_visit():
    assert [v.requests for v in visits(Grid((8,), (8,), concurrency=(1,), repeats=1))] == [1]
    assert [v.requests for v in visits(Grid((8,), (8,), concurrency=(16,), repeats=1))] == [32]
    assert planned_requests(Grid((8,), (8,), concurrency=(16,), repeats=2, requests=5)) == 10


def test_paired_lists_are_read_side_by_side():
    grid = Grid((64, 128, 256), (128, 256, 512), paired=True)
    assert shapes(grid) == [(64, 128), (128, 256), (256, 512)]
    with pytest.raises(InputError, match="as many entries"):
        check_grid(Grid((64, 128), (1, 2, 3), paired=True))


def test_warm_up_takes_each_length_once_largest_first():
    cells = warmups(Grid((64, 256, 128), (32, 16)))
    assert [(c.input_tokens, c.output_tokens) for c in cells] == [(256, 16), (128, 16), (64, 16)]


def test_over_the_context_is_refused_with_the_numbers():
    with pytest.raises(
        InputError, match="2040 with 16 output tokens.*2056, over the model's context of 2048"
    ):
        check_grid(Grid((2040,), (16,)), max_context_tokens=2048)
    check_grid(Grid((2032,), (16,)), max_context_tokens=2048)


def test_no_repeats_are_refused():
    with pytest.raises(InputError, match="--repeats: 0"):
        check_grid(Grid((1,), (1,), repeats=0))


def test_lengths_as_written():
    assert parse_counts("64, 128,64,1_024", "--input-tokens") == (64, 128, 1024)


@pytest.mark.parametrize("text", ["", "64,", "abc", "1.5", "-3", "0", "64;128", "99999999999", "1e3", "²"])
def test_bad_lengths_name_the_field(text):
    with pytest.raises(InputError, match="--input-tokens"):
        parse_counts(text, "--input-tokens")
