"""Two sides of runs -> the effect of whatever was changed between them, with intervals and answers. Pure.

Effects are taken within each stratum (shape and level of load) and pooled with equal weights; where lengths are drawn
from a distribution, with weights by the requests of both sides. The interval draws whole units again, see
`compare_samples`. Definitions: docs/definitions.md; the choices are argued in docs/decisions/005-comparison.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.compare_draws import STATS, Drawn, drawn_rate, drawn_stats, weights_of
from phasemeter.explain.compare_effect import Pair, Shared
from phasemeter.explain.compare_facts import Note, SideFacts, facts_of, notes_of
from phasemeter.explain.compare_rows import Row, metric_row, reference_ms
from phasemeter.explain.compare_samples import (
    BATCHES,
    QUANTITIES,
    Drawing,
    Side,
    Stock,
    Strata,
    Stratum,
    drawing_of,
    has_many_lengths,
    levels_of,
    side_of,
    stock_of,
    strata_of,
)
from phasemeter.explain.compare_unlike import (
    SHAPES,
    Difference,
    check_allow,
    check_like,
    check_other,
    differing_fields,
)
from phasemeter.explain.stats import MIN_FOR_INTERVAL
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run, merge

if TYPE_CHECKING:
    from phasemeter.explain.compare_draws import Floats
    from phasemeter.explain.compare_samples import Good

RATES = ("output_tokens_per_s", "requests_per_s", "goodput_per_s")
"""Compared like latencies, and higher is better. Goodput counts the requests that met the service level."""

METRICS = (*(f"{quantity}_{stat}" for quantity in QUANTITIES for stat in STATS), *RATES)
"""Every metric that a comparison can hold."""

_MOST_LEFT_OUT = 0.05
"""Of requests whose lengths the other side did not draw."""


class ShapeRows(Struct, frozen=True):
    """The rows of one stratum."""

    stratum: Stratum
    base_requests: int
    new_requests: int
    rows: tuple[Row, ...]


class Comparison(Struct, frozen=True):
    """Everything that is derived from two sides. `comparisons` counts the answers: one in twenty intervals misses the
    truth by chance."""

    base: SideFacts
    new: SideFacts
    differs: tuple[Difference, ...]
    margin_ratio: float
    rows: tuple[Row, ...]
    shapes: tuple[ShapeRows, ...]
    grouped: bool
    notes: tuple[Note, ...]
    comparisons: int

    def row(self, name: str) -> Row | None:
        """The pooled row of a metric; None where a side does not tell it."""
        return next((row for row in self.rows if row.name == name), None)


def compare(
    base: Sequence[Run],
    new: Sequence[Run],
    *,
    margin_ratio: float = 0.03,
    allow: Sequence[str] = (),
    good: Good | None = None,
) -> Comparison:
    """Compare two sides of one or more runs each (those of a side are one measurement, else InputError).

    `margin_ratio`: changes within it count as the same. `allow`: fields in which the sides may differ. `good`: which
    successful requests meet the service level, for goodput. Raises InputError where the sides are not alike or have
    no shape in common."""
    check_other(base, new)
    merged = merge(base), merge(new)
    found = differing_fields(merged[0].header, merged[1].header)
    check_allow(allow, found, [run.header for run in merged])
    check_like(found, allow, (_name(merged[0]), _name(merged[1])))
    sides = side_of(merged[0], good), side_of(merged[1], good)
    grouped = has_many_lengths(sides)
    strata = strata_of(sides[0], grouped=grouped), strata_of(sides[1], grouped=grouped)
    keys = [key for key in strata[0] if key in strata[1]]
    left_out = _left_out(strata, keys)
    _check_shapes(strata, keys, left_out, allow, grouped=grouped)
    both = _Both.of(sides, ({k: strata[0][k] for k in keys}, {k: strata[1][k] for k in keys}))
    spreads = (_spreads(base, keys, grouped=grouped), _spreads(new, keys, grouped=grouped))
    mixed = grouped or sides[0].mixed or sides[1].mixed
    tables = _tables(both, keys, rates=not mixed)
    rows = _pooled(tables, _levels(both) if mixed else tables, both, margin_ratio, spreads, grouped=grouped)
    shapes = tuple(_shape(key, tables[key], both, margin_ratio, spreads) for key in keys)
    facts = facts_of(sides[0], both.drawings[0]), facts_of(sides[1], both.drawings[1])
    return Comparison(
        base=facts[0],
        new=facts[1],
        differs=tuple(found),
        margin_ratio=margin_ratio,
        rows=rows,
        shapes=shapes,
        grouped=grouped,
        notes=notes_of(facts, sides, left_out, spreads, grouped=grouped),
        comparisons=len(rows) + (sum(len(shape.rows) for shape in shapes) if len(shapes) > 1 else 0),
    )


_Table = dict[str, tuple[Drawn, Drawn]]
"""(base, new) by metric, of one stratum."""


class _Both(Struct, frozen=True):
    """Both sides, reduced to the strata that they share, and what of each is drawn again."""

    sides: tuple[Side, Side]
    strata: tuple[Strata, Strata]
    drawings: tuple[Drawing, Drawing]

    @classmethod
    def of(cls, sides: tuple[Side, Side], strata: tuple[Strata, Strata]) -> _Both:
        """Choose what of each side is drawn again."""
        return cls(
            sides,
            strata,
            (drawing_of(sides[0], strata[0].values()), drawing_of(sides[1], strata[1].values())),
        )

    @property
    def shared(self) -> Shared:
        """Whether each side's strata are drawn together."""
        base, new = self.drawings
        return Shared(base.kind != "batch", new.kind != "batch")


def _name(run: Run) -> str:
    return run.name or run.header.run_id


def _left_out(strata: tuple[Strata, Strata], keys: Sequence[Stratum]) -> tuple[int, int]:
    """Requests of each side that the other has no stratum for."""
    kept = set(keys)
    base, new = (sum(len(readings) for key, readings in side.items() if key not in kept) for side in strata)
    return base, new


def _check_shapes(
    strata: tuple[Strata, Strata],
    keys: Sequence[Stratum],
    left_out: tuple[int, int],
    allow: Sequence[str],
    *,
    grouped: bool,
) -> None:
    totals = [sum(map(len, side.values())) for side in strata]
    if not keys:
        raise InputError(
            "BASE and NEW", "no shape in common", "measure the same lengths and load on both sides"
        )
    shares = [n / max(total, 1) for n, total in zip(left_out, totals, strict=True)]
    most = _MOST_LEFT_OUT if grouped else 0.0
    if SHAPES not in allow and max(shares) > most:
        raise InputError(
            "BASE and NEW",
            f"{left_out[0]} of {totals[0]} and {left_out[1]} of {totals[1]} requests have shapes that the other lacks",
            f"measure the same shapes, or compare the {len(keys)} in common with --allow {SHAPES}",
        )


def _tables(both: _Both, keys: Sequence[Stratum], *, rates: bool) -> dict[Stratum, _Table]:
    tables: dict[Stratum, _Table] = {}
    for key in keys:
        stocks = tuple(
            stock_of(side, key, strata[key], drawing)
            for side, strata, drawing in zip(both.sides, both.strata, both.drawings, strict=True)
        )
        tables[key] = _table(both, key, (stocks[0], stocks[1]), rates=rates)
    return tables


def _table(both: _Both, key: Stratum, stocks: tuple[Stock, Stock], *, rates: bool) -> _Table:
    weights = [
        None if stock.n_units is None else weights_of(_seed(side, key, drawing), stock.n_units)
        for side, stock, drawing in zip(both.sides, stocks, both.drawings, strict=True)
    ]
    found: _Table = {}
    alike = both.sides[0].by_token is not None and both.sides[0].by_token == both.sides[1].by_token
    for quantity in QUANTITIES:
        samples = [stock.samples.get(quantity) for stock in stocks]
        if samples[0] is None or samples[1] is None or (quantity == "itl" and not alike):
            continue
        base, new = drawn_stats(samples[0], weights[0]), drawn_stats(samples[1], weights[1])
        found |= {f"{quantity}_{stat}": (base[stat], new[stat]) for stat in STATS}
    for name in RATES if rates else ():
        drawn = [
            None if (amount := _amount(stock, name)) is None else drawn_rate(stock.flow, amount, w)
            for stock, w in zip(stocks, weights, strict=True)
        ]
        if drawn[0] is not None and drawn[1] is not None:
            found[name] = drawn[0], drawn[1]
    return found


def _amount(stock: Stock, name: str) -> Floats | None:
    flow = stock.flow
    return {"output_tokens_per_s": flow.tokens, "requests_per_s": flow.requests}.get(name, flow.good)


def _seed(side: Side, key: Stratum, drawing: Drawing) -> str:
    """Runs and blocks are drawn once for all strata, batches anew in each."""
    own = side.run.header.run_id
    return own if drawing.kind != "batch" else f"{own} {key}"


def _levels(both: _Both) -> dict[Stratum, _Table]:
    """Throughput by level of load: where shapes are served side by side, a shape has no rate of its own."""
    strata = levels_of(both.strata[0]), levels_of(both.strata[1])
    tables = _tables(
        _Both(both.sides, strata, both.drawings), [k for k in strata[0] if k in strata[1]], rates=True
    )
    return {
        key: {name: pair for name, pair in table.items() if name in RATES} for key, table in tables.items()
    }


def _pooled(
    tables: dict[Stratum, _Table],
    rates: dict[Stratum, _Table],
    both: _Both,
    margin_ratio: float,
    spreads: tuple[dict[str, float], dict[str, float]],
    *,
    grouped: bool,
) -> tuple[Row, ...]:
    counts = {key: float(len(both.strata[0][key]) + len(both.strata[1][key])) for key in tables}
    rows: list[Row] = []
    for name in METRICS:
        source = rates if name in RATES else tables
        pairs = [
            Pair(*table[name], counts[key] if grouped and source is tables else 1.0)
            for key, table in source.items()
            if name in table
        ]
        if pairs:
            spread = _spread(name, spreads)
            reference = reference_ms(name, [t for t in tables.values() if name in t])
            rows.append(
                metric_row(name, pairs, both.shared, margin_ratio, reference=reference, spread=spread)
            )
    return tuple(rows)


def _shape(
    key: Stratum,
    table: _Table,
    both: _Both,
    margin_ratio: float,
    spreads: tuple[dict[str, float], dict[str, float]],
) -> ShapeRows:
    rows = tuple(
        metric_row(
            name,
            [Pair(*table[name], 1.0)],
            both.shared,
            margin_ratio,
            reference=reference_ms(name, [table]),
            spread=_spread(name, spreads),
        )
        for name in METRICS
        if name in table
    )
    return ShapeRows(key, len(both.strata[0][key]), len(both.strata[1][key]), rows)


def _spread(name: str, spreads: tuple[dict[str, float], dict[str, float]]) -> float:
    return max((found[name] for found in spreads if name in found), default=0.0)


def _spreads(runs: Sequence[Run], keys: Sequence[Stratum], *, grouped: bool) -> dict[str, float]:
    """How far the runs of one side lie apart, ln(largest / smallest) of each metric pooled over the strata; for two
    to four runs only: five and more are drawn as units."""
    if not 2 <= len(runs) < MIN_FOR_INTERVAL:
        return {}
    logs: dict[str, list[float]] = {}
    for run in runs:
        side = side_of(run)
        strata = strata_of(side, grouped=grouped)
        stocks = [stock_of(side, key, strata[key], BATCHES) for key in keys if key in strata]
        for quantity in QUANTITIES:
            drawn = [drawn_stats(s.samples[quantity], None) for s in stocks if quantity in s.samples]
            for stat in STATS:
                values = [d[stat].value for d in drawn]
                if len(values) == len(keys) and min(values) > 0:
                    logs.setdefault(f"{quantity}_{stat}", []).append(sum(map(math.log, values)) / len(values))
        for name in RATES[:2]:
            rates = [
                rate
                for s in stocks
                if (a := _amount(s, name)) is not None and (rate := drawn_rate(s.flow, a, None))
            ]
            if len(rates) == len(keys) and min(r.value for r in rates) > 0:
                logs.setdefault(name, []).append(sum(math.log(r.value) for r in rates) / len(rates))
    return {name: max(found) - min(found) for name, found in logs.items() if len(found) == len(runs)}
