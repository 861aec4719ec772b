"""The options of a load: what is sent, when, for how long, and when a request is given up."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import TypeVar

import click

from phasemeter.cli.flags import MOST_TIMEOUT_S, FiniteRange, number_of, text_of
from phasemeter.measure.arrivals import MOST_RATE_PER_S, parse_arrivals
from phasemeter.measure.load import LATE_LIMIT_MS, Load, Patience, Stage
from phasemeter.measure.plan import Grid
from phasemeter.measure.text_tokens import open_tokenizer
from phasemeter.measure.workload import open_workload, parse_workload, trace_spec
from phasemeter.record.errors import InputError

F = TypeVar("F", bound=Callable[..., object])

MAKES_A_LOAD = (
    "rate", "arrivals", "duration", "trace", "trace_scale", "trace_window", "workload", "tokenizer",
    "think_s", "stagger_s", "cancel_ratio", "cancel_after_tokens", "late_limit_ms",
)  # fmt: skip
"""Given one of these, the run is a load and no grid."""
_MOST_STAGES = 1000


def load_flags(function: F) -> F:
    """A load instead of a grid."""
    seconds = FiniteRange(0, MOST_TIMEOUT_S, min_open=True)
    for option in reversed(
        (
            click.option(
                "--workload",
                metavar="TEXT",
                help="What is sent, such as lengths:input=lognormal:512:0.8,output=uniform:16:256. "
                "[default: --input-tokens and --output-tokens, drawn evenly]",
            ),
            click.option(
                "--tokenizer",
                metavar="NAME|DIR",
                help="Tokenizer that makes prompts of an exact length where the server takes no token ids.",
            ),
            click.option(
                "--rate",
                metavar="R,R,...",
                help="Open loop: requests a second, whatever is in flight; a stage for each.",
            ),
            click.option(
                "--arrivals",
                metavar="KIND",
                help="Spacing of an open loop: constant, poisson, gamma:CV, bursts:ON_S:OFF_S, ramp:FROM_RATE. "
                "[default: poisson]",
            ),
            click.option("--duration", type=seconds, metavar="S", help="Seconds of each stage."),
            click.option(
                "--trace", metavar="FILE", help="Open loop: arrivals and lengths of a recorded trace."
            ),
            click.option(
                "--trace-scale",
                type=FiniteRange(0, 1e6, min_open=True),
                metavar="X",
                help="Play the trace X times as fast. [default: 1]",
            ),
            click.option(
                "--trace-window",
                metavar="START:LENGTH",
                help="Only these seconds of the trace's own time. [default: all]",
            ),
            click.option(
                "--think-s",
                type=FiniteRange(0, MOST_TIMEOUT_S),
                metavar="S",
                help="Closed loop: a slot's mean pause before its next request (exponential). [default: 0]",
            ),
            click.option(
                "--stagger-s",
                type=FiniteRange(0, MOST_TIMEOUT_S),
                metavar="S",
                help="Closed loop: open the slots evenly over S seconds. [default: 0]",
            ),
            click.option(
                "--connect-timeout-s",
                type=seconds,
                metavar="S",
                help="Give it up after S seconds without a connection. [default: 10]",
            ),
            click.option(
                "--first-token-timeout-s",
                type=seconds,
                metavar="S",
                help="... from sending it to its first token.",
            ),
            click.option(
                "--gap-timeout-s", type=seconds, metavar="S", help="... from one token to the next."
            ),
            click.option(
                "--cancel-ratio",
                type=FiniteRange(0, 1),
                metavar="RATIO",
                help="Share of requests that the client gives up on purpose. [default: 0]",
            ),
            click.option(
                "--cancel-after-tokens",
                type=click.IntRange(1, 10_000_000),
                metavar="N",
                help="Give those up after so many generated tokens. [default: 8]",
            ),
            click.option(
                "--late-limit-ms",
                type=FiniteRange(0, 1e6, min_open=True),
                metavar="MS",
                help="Open loop: a request sent later counts as late; above 1 % the run is invalid. [default: 10]",
            ),
        )
    ):
        function = option(function)
    return function


def given() -> frozenset[str]:
    """Names of the options that stood on the command line."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return frozenset(name for name in context.params if context.get_parameter_source(name) is source)


def load_of(options: dict[str, object], grid: Grid, given: Collection[str]) -> Load | None:
    """The load that the options ask for, checked; None where they ask for a grid. `given` names the options that stood
    on the command line. Raises InputError."""
    _check_engine(text_of(options, "engine") or "local", given)
    if not any(name in given for name in MAKES_A_LOAD):
        return None
    _contradictions(given)
    stages = _stages(options, grid, given)
    return Load(
        workload=_workload(options, grid, given),
        stages=stages,
        arrivals=parse_arrivals(text_of(options, "arrivals") or "poisson"),
        patience=_patience(options),
        stagger_s=number_of(options, "stagger_s") or 0.0,
        think_s=number_of(options, "think_s") or 0.0,
        seed=grid.seed,
        warmup=grid.warmup,
        sampling=grid.sampling,
        tokenizer=_tokenizer(text_of(options, "tokenizer")),
        late_limit_ms=number_of(options, "late_limit_ms") or LATE_LIMIT_MS,
    )


def _check_engine(kind: str, given: Collection[str]) -> None:
    for name in ("connect_timeout_s", "first_token_timeout_s", "gap_timeout_s"):
        if name in given and kind not in {"openai", "vllm"}:
            raise InputError(
                _flag(name), "given", f"is of a server over HTTP (openai, vllm), not of {kind}; leave it out"
            )
    if "cancel_ratio" in given and kind == "vllm-local":
        raise InputError(
            "--cancel-ratio", "given", "vllm-local gives up no request; use --engine vllm, or leave it out"
        )


_NOT_TOGETHER = (
    ("trace", "rate", "a trace has its own arrivals; scale it with --trace-scale, or leave --trace out"),
    ("trace", "concurrency", "a trace is an open loop; leave --concurrency out"),
    ("trace", "workload", "a trace has its own lengths; give one of the two"),
    ("trace", "input_tokens", "a trace has its own lengths; leave --input-tokens out"),
    ("trace", "output_tokens", "a trace has its own lengths; leave --output-tokens out"),
    ("rate", "concurrency", "a rate is an open loop, a concurrency a closed one; give one of the two"),
    ("workload", "input_tokens", "the workload says the lengths; leave --input-tokens out"),
    ("workload", "output_tokens", "the workload says the lengths; leave --output-tokens out"),
    ("rate", "think_s", "think time belongs to a closed loop (--concurrency); leave it out"),
    ("trace", "think_s", "think time belongs to a closed loop (--concurrency); leave it out"),
    ("rate", "stagger_s", "only a closed loop (--concurrency) has slots to stagger; leave it out"),
    ("trace", "stagger_s", "only a closed loop (--concurrency) has slots to stagger; leave it out"),
    ("trace", "arrivals", "a trace has its own arrivals; leave --arrivals out"),
)
_NEEDS = (
    ("arrivals", ("rate",), "spaces an open loop; give --rate, too"),
    ("trace_scale", ("trace",), "is of a trace; give --trace, too"),
    ("trace_window", ("trace",), "is of a trace; give --trace, too"),
    ("cancel_after_tokens", ("cancel_ratio",), "says when; give --cancel-ratio, too"),
    ("late_limit_ms", ("rate", "trace"), "is of an open loop; give --rate or --trace, too"),
)


def _contradictions(given: Collection[str]) -> None:
    for one, other, mend in _NOT_TOGETHER:
        if one in given and other in given:
            raise InputError(f"{_flag(one)} and {_flag(other)}", "both given", mend)
    for one, others, mend in _NEEDS:
        if one in given and not any(other in given for other in others):
            raise InputError(_flag(one), "given", mend)
    if "paired" in given:
        raise InputError("--paired", "given", "is of a grid; a load draws its lengths")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _stages(options: dict[str, object], grid: Grid, given: Collection[str]) -> tuple[Stage, ...]:
    duration_s = number_of(options, "duration")
    duration_ns = None if duration_s is None else max(1, round(duration_s * 1e9))
    level = Stage(requests=grid.requests, duration_ns=duration_ns)
    if "trace" not in given and grid.requests is None and duration_s is None:
        raise InputError(
            "--duration or --requests", "none", "a load needs an end: seconds, or requests, of each stage"
        )
    if "trace" in given:
        levels = [level]
    elif "rate" in given:
        levels = [_with(level, rate_per_s=rate) for rate in parse_rates(text_of(options, "rate") or "")]
    else:
        levels = [_with(level, concurrency=n) for n in grid.concurrency]
    return _in_blocks(levels, grid.repeats if "repeats" in given else 1, grid.seed)


def _in_blocks(levels: list[Stage], blocks: int, seed: int) -> tuple[Stage, ...]:
    """One block: in the user's order. More: each in an order of its own, so that a slow minute falls on all alike."""
    if blocks * len(levels) > _MOST_STAGES:
        raise InputError("--repeats", blocks, f"more than {_MOST_STAGES} stages; ask for fewer")
    if blocks == 1:
        return tuple(levels)
    order = random.Random(f"order/{seed}")
    return tuple(
        _with(level, block=block) for block in range(blocks) for level in order.sample(levels, k=len(levels))
    )


def _with(stage: Stage, **fields: float | int) -> Stage:
    from msgspec.structs import replace

    return replace(stage, **fields)


def parse_rates(text: str) -> tuple[float, ...]:
    """A comma-separated list of requests a second, doubles dropped, order kept. Raises InputError."""
    rates: list[float] = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = -1.0
        if not 0 < rate <= MOST_RATE_PER_S:
            raise InputError(
                "--rate",
                text,
                f"give requests a second, above 0 and up to {MOST_RATE_PER_S:g}, such as 2,4,8",
            )
        if rate not in rates:
            rates.append(rate)
    return tuple(rates)


def _workload(options: dict[str, object], grid: Grid, given: Collection[str]) -> dict[str, object]:
    """The workload's specification, opened once so that what is wrong with it is told before anything is started."""
    spec: dict[str, object]
    if "trace" in given:
        file = text_of(options, "trace") or ""
        spec = trace_spec(file, number_of(options, "trace_scale"), text_of(options, "trace_window"))
    elif "workload" in given:
        spec = parse_workload(text_of(options, "workload") or "")
    else:
        spec = {"kind": "lengths", "input": _list(grid.input_tokens), "output": _list(grid.output_tokens)}
    if spec["kind"] == "sharegpt" and text_of(options, "tokenizer"):
        spec.setdefault("tokenizer", text_of(options, "tokenizer"))
    open_workload(spec, grid.seed)
    return spec


def _tokenizer(name: str | None) -> str | None:
    """The name, opened once so that a wrong one is told before anything is started."""
    if name is not None:
        open_tokenizer(name)
    return name


def _list(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))


def _patience(options: dict[str, object]) -> Patience:
    plain = Patience()
    after = options.get("cancel_after_tokens")
    total_s = number_of(options, "timeout_s")
    return Patience(
        connect_s=number_of(options, "connect_timeout_s"),
        first_token_s=number_of(options, "first_token_timeout_s"),
        gap_s=number_of(options, "gap_timeout_s"),
        total_s=plain.total_s if total_s is None else total_s,
        cancel_ratio=number_of(options, "cancel_ratio") or 0.0,
        cancel_after_tokens=after if isinstance(after, int) else plain.cancel_after_tokens,
    )
