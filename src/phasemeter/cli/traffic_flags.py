"""The options of a traffic that is simulated, and of the engine that it meets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

import click

from phasemeter.cli.flags import FiniteRange, number_of, text_of
from phasemeter.measure.arrivals import parse_arrivals
from phasemeter.measure.item import Item
from phasemeter.measure.load import WHOLE, Load, Stage
from phasemeter.measure.workload import open_workload, parse_workload, trace_spec
from phasemeter.predict.routing import POLICIES
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    from phasemeter.predict.whatif_prefix import Openings

F = TypeVar("F", bound=Callable[..., object])

_MOST = 1_000_000
_ROUTINGS = tuple(name for name in POLICIES if name != "length-bucket")
"""Simulated replicas are alike and have no buckets."""


def traffic_flags(function: F) -> F:
    """What arrives, and when."""
    return _with(
        function,
        click.option("--rate", type=FiniteRange(0, 1e6, min_open=True), metavar="R", help="Requests a second."),
        click.option(
            "--arrivals",
            metavar="KIND",
            help="Spacing: constant, poisson, gamma:CV, bursts:ON_S:OFF_S, ramp:FROM_RATE. [default: poisson]",
        ),
        click.option("--trace", metavar="FILE", help="Arrivals and lengths of a recorded trace."),
        click.option(
            "--trace-scale",
            type=FiniteRange(0, 1e6, min_open=True),
            metavar="X",
            help="Play the trace X times as fast. [default: 1]",
        ),
        click.option("--trace-window", metavar="START:LENGTH", help="Only these seconds of the trace's own time."),
        click.option(
            "--workload",
            metavar="TEXT",
            help="What is sent, such as lengths:input=lognormal:512:0.8,output=uniform:16:256.",
        ),
        click.option("--input-tokens", metavar="LENGTHS", help="Prompt lengths, a list or a distribution."),
        click.option("--output-tokens", metavar="LENGTHS", help="Answer lengths, a list or a distribution."),
        click.option(
            "--requests",
            type=click.IntRange(1, _MOST),
            metavar="N",
            help="Requests that are simulated. [default: 5000; a trace: all]",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals, lengths and routing."),
    )  # fmt: skip


def engine_settings_flags(function: F) -> F:
    """The engine's own flags, under vLLM's names."""
    whole = click.IntRange(1, _MOST)
    return _with(
        function,
        click.option("--max-num-seqs", type=whole, metavar="N", help="Sequences together. [default: 1024]"),
        click.option(
            "--max-num-batched-tokens", type=whole, metavar="N", help="Tokens of one step. [default: the model's]"
        ),
        click.option(
            "--long-prefill-token-threshold",
            type=click.IntRange(0, _MOST),
            default=0,
            show_default=True,
            metavar="N",
            help="Most tokens of one prompt in one step; 0 no limit.",
        ),
        click.option("--no-chunked-prefill", is_flag=True, help="A prompt is processed whole."),
        click.option("--prefix-caching", is_flag=True, help="Prompts that begin alike share their cache."),
        click.option("--block-size", type=whole, default=16, show_default=True, metavar="N", help="Tokens of a block."),
        click.option(
            "--kv-blocks",
            type=click.IntRange(1, 1_000_000_000),
            metavar="N",
            help="Blocks of KV cache of one replica. [default: what a GPU's memory leaves, else no limit]",
        ),
        click.option(
            "--routing",
            type=click.Choice(_ROUTINGS),
            default="least-tokens",
            show_default=True,
            help="How a request finds its replica.",
        ),
    )  # fmt: skip


def _with(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def settings_of(options: dict[str, object], budget_tokens: int) -> EngineSettings:
    """The engine's settings; `budget_tokens` where the user gives none. Raises InputError."""
    sequences, budget = options.get("max_num_seqs"), options.get("max_num_batched_tokens")
    tokens = budget if isinstance(budget, int) else budget_tokens
    blocks, size, most = (
        options.get("kv_blocks"),
        options.get("block_size"),
        options.get("long_prefill_token_threshold"),
    )
    return EngineSettings(
        max_num_seqs=sequences if isinstance(sequences, int) else min(EngineSettings().max_num_seqs, tokens),
        max_num_batched_tokens=tokens,
        chunked_prefill=not options.get("no_chunked_prefill"),
        long_prefill_token_threshold=most if isinstance(most, int) else 0,
        block_size=size if isinstance(size, int) else 16,
        kv_blocks=blocks if isinstance(blocks, int) else None,
        prefix_caching=bool(options.get("prefix_caching")),
    )  # fmt: skip


def fixed_flags(options: dict[str, object]) -> tuple[str, ...]:
    """Which of the flags that a search may change the user has set."""
    return tuple(name for name in ("max_num_seqs", "max_num_batched_tokens") if options.get(name) is not None)


def is_steady(options: dict[str, object], given: Collection[str]) -> bool:
    """Whether the traffic has one rate all the time; a trace, a ramp and bursts have not."""
    kind = (text_of(options, "arrivals") or "poisson").partition(":")[0]
    return "trace" not in given and kind not in {"ramp", "bursts"}


def traffic_of(options: dict[str, object], given: Collection[str]) -> Traffic:
    """The requests that the options describe. Raises InputError for what contradicts, is missing or cannot be read."""
    _contradictions(options, given)
    users = options.get("concurrency")
    rate = number_of(options, "rate")
    count = options.get("requests")
    most = count if isinstance(count, int) else (None if "trace" in given and rate is None else 5000)
    seed = seed if isinstance(seed := options.get("seed"), int) else 0
    workload = open_workload(_spec(options, given), seed)
    stage = Stage(requests=most, rate_per_s=rate, concurrency=users if isinstance(users, int) else None)
    load = Load(
        {},
        (stage,),
        arrivals=parse_arrivals(text_of(options, "arrivals") or "poisson"),
        think_s=number_of(options, "think_s") or 0.0,
        seed=seed,
    )
    from phasemeter.measure.supply import outlines, think_ns

    groups = [
        (one.due_ns, one.items) for one in itertools.islice(outlines(load, workload, stage, 0, WHOLE), most)
    ]
    items = [item for _, group in groups for item in group]
    if any(item.output_tokens is None for item in items):
        raise InputError(
            "--workload",
            "answers of unknown length",
            "a simulation needs them; give output=... to the workload",
        )
    return _columns(groups, items, stage.concurrency, lambda item: think_ns(load, item))


def _columns(
    groups: list[tuple[int, tuple[Item, ...]]],
    items: list[Item],
    users: int | None,
    pause_ns: Callable[[Item], int],
) -> Traffic:
    turns = any(len(group) > 1 for _, group in groups)
    if turns and users is not None:
        raise InputError("--concurrency", users, "conversations are simulated in an open loop; give --rate")
    arrive: list[float] = []
    after: list[int] = []
    think: list[float] = []
    for due_ns, group in groups:
        for place, item in enumerate(group):
            after.append(len(after) - 1 if place else -1)
            arrive.append(due_ns / 1e9)
            own_ns = item.turn.think_ns if item.turn is not None and place else 0
            think.append((pause_ns(item) if users is not None else own_ns) / 1e9)
    openings: list[Openings] = [tuple((one.name, one.tokens) for one in item.openings) for item in items]
    return Traffic(
        input_tokens=[item.input_tokens for item in items],
        output_tokens=[item.output_tokens or 1 for item in items],
        arrive_s=arrive if users is None else None,
        users=users,
        think_s=think if users is not None or turns else None,
        after=after if turns else None,
        openings=openings if any(openings) else None,
    )


def _spec(options: dict[str, object], given: Collection[str]) -> dict[str, object]:
    if "trace" in given:
        file = text_of(options, "trace") or ""
        return trace_spec(file, number_of(options, "trace_scale"), text_of(options, "trace_window"))
    if "workload" in given:
        return parse_workload(text_of(options, "workload") or "")
    lengths = {name: text_of(options, f"{name}_tokens") for name in ("input", "output")}
    for name, text in lengths.items():
        if text is None:
            raise InputError(
                f"--{name}-tokens", "none", "give --input-tokens and --output-tokens, or a --workload"
            )
    return {"kind": "lengths", **lengths}


_NOT_TOGETHER = (
    ("trace", "workload", "a trace has its own lengths; give one of the two"),
    ("trace", "input_tokens", "a trace has its own lengths; leave --input-tokens out"),
    ("trace", "output_tokens", "a trace has its own lengths; leave --output-tokens out"),
    ("trace", "arrivals", "a trace has its own arrivals; leave --arrivals out"),
    ("trace", "rate", "a trace has its own arrivals; scale it with --trace-scale"),
    ("workload", "input_tokens", "the workload says the lengths; leave --input-tokens out"),
    ("workload", "output_tokens", "the workload says the lengths; leave --output-tokens out"),
    ("concurrency", "rate", "a rate is an open loop, a concurrency a closed one; give one of the two"),
    ("concurrency", "trace", "a trace is an open loop; leave --concurrency out"),
    ("concurrency", "arrivals", "spaces an open loop; leave it out"),
)


def _contradictions(options: dict[str, object], given: Collection[str]) -> None:
    for one, other, mend in _NOT_TOGETHER:
        if one in given and other in given:
            raise InputError(f"--{one} and --{other.replace('_', '-')}", "both given", mend)
    for name in ("trace_scale", "trace_window"):
        if name in given and "trace" not in given:
            raise InputError(f"--{name.replace('_', '-')}", "given", "is of a trace; give --trace, too")
    closed = "concurrency" in options
    if not any(name in given for name in ("rate", "trace", "concurrency")):
        ways = "--rate R, --trace FILE" + (" or --concurrency N" if closed else "")
        raise InputError("traffic", "none", f"say when requests come: {ways}")
    if "think_s" in given and "concurrency" not in given:
        raise InputError("--think-s", "given", "belongs to a closed loop (--concurrency); leave it out")
