"""`phasemeter models`: shapes, and what one token of them costs."""

from __future__ import annotations

import click
import msgspec

from phasemeter.cli.flags import json_flag
from phasemeter.measure.lengths import parse_counts
from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.model import PRESETS, ModelShape, load_shape
from phasemeter.roofline.work import decode, prefill, work


@click.command("models")
@click.argument("name", required=False, metavar="[NAME|DIR|config.json]")
@click.option(
    "--hardware", default="a100-40gb-sxm", show_default=True, metavar="NAME", help="Floors for this chip."
)
@click.option(
    "--input-tokens",
    default="64,128,256,512",
    show_default=True,
    metavar="N,N,...",
    help="Prompt lengths of the table.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="Number format of weights and cache.")
@json_flag
def command(name: str | None, hardware: str, input_tokens: str, dtype: str, as_json: bool) -> int:
    """List model shapes, or show one with its work and the floors of its prefill and decode.

    \b
    Examples:
      phasemeter models
      phasemeter models ernie-4.5-0.3b --hardware h200
      phasemeter models ./my-model/config.json
    """
    if name is None:
        shapes = [load_shape(preset) for preset in PRESETS]
        if as_json:
            click.echo(msgspec.json.encode({"models": [_facts(shape, dtype) for shape in shapes]}).decode())
        else:
            _table(shapes)
        return 0
    shape = load_shape(name)
    lengths = parse_counts(input_tokens, "--input-tokens")
    chip = find_hardware(hardware)
    rows: list[dict[str, object]] = []
    for tokens in lengths:
        first, step = (
            prefill_floor(shape, tokens, chip, dtype=dtype),
            decode_floor(shape, tokens, chip, dtype=dtype),
        )
        rows.append(
            {
                "input_tokens": tokens,
                "prefill_gflop": work(shape, prefill(tokens), dtype).flops / 1e9,
                "decode_mb": work(shape, decode(tokens), dtype).bytes / 1e6,
                "floor_prefill_ms": first.seconds * 1e3,
                "floor_tpot_ms": step.seconds * 1e3,
                "bound_prefill": first.bound,
                "bound_decode": step.bound,
            }
        )
    if as_json:
        found = _facts(shape, dtype) | {"hardware": chip.name, "dtype": dtype, "by_length": rows}
        click.echo(msgspec.json.encode(found).decode())
        return 0
    _one(shape, dtype)
    click.echo(f"\nFloors on {chip.title}, {dtype}, batch 1:")
    click.echo(
        f"{'input':>8}{'prefill GFLOP':>15}{'floor ms':>10}  {'bound':<8}{'decode MB':>11}{'TPOT floor ms':>15}"
    )
    for row in rows:
        click.echo(
            f"{row['input_tokens']:>8}{row['prefill_gflop']:>15.1f}{row['floor_prefill_ms']:>10.3f}  "
            f"{row['bound_prefill']:<8}{row['decode_mb']:>11.1f}{row['floor_tpot_ms']:>15.3f}"
        )
    return 0


def _facts(shape: ModelShape, dtype: str) -> dict[str, object]:
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "active_parameters": shape.active_parameters,
        "matmul_parameters": shape.matmul_parameters,
        "kv_bytes_per_token": shape.kv_bytes_per_token(dtype),
        "weight_bytes": shape.weight_bytes(dtype),
        "crossover_tokens": shape.crossover_tokens(),
        "shape": msgspec.to_builtins(shape),
    }


def _table(shapes: list[ModelShape]) -> None:
    click.echo(
        f"{'name':<22}{'parameters':>16}{'layers':>8}{'hidden':>8}{'heads':>9}{'KV B/token':>12}{'N*':>9}"
    )
    for shape in shapes:
        click.echo(
            f"{shape.name:<22}{shape.parameters:>16,}{shape.layers:>8}{shape.hidden:>8}"
            f"{f'{shape.heads}/{shape.kv_heads}':>9}{shape.kv_bytes_per_token('bfloat16'):>12,.0f}"
            f"{shape.crossover_tokens():>9,.0f}"
        )
    click.echo(
        "heads: query/KV. N*: prompt length at which attention needs as many FLOPs as the linear layers."
    )


def _one(shape: ModelShape, dtype: str) -> None:
    click.echo(f"{shape.name} ({shape.model_type})")
    click.echo(f"  parameters        {shape.parameters:,}  (active {shape.active_parameters:,})")
    click.echo(
        f"  layers x hidden   {shape.layers} x {shape.hidden}, MLP {shape.intermediate}, vocabulary {shape.vocab:,}"
    )
    click.echo(f"  heads             {shape.heads} query, {shape.kv_heads} KV, head_dim {shape.head_dim}")
    click.echo(f"  embeddings        {'tied' if shape.tied_embeddings else 'not tied'}")
    click.echo(f"  weights           {shape.weight_bytes(dtype) / 1e6:,.1f} MB in {dtype}")
    click.echo(f"  KV cache          {shape.kv_bytes_per_token(dtype):,.0f} bytes a token in {dtype}")
    click.echo(
        f"  N*                {shape.crossover_tokens():,.0f} tokens: below it a square law of prefill cannot hold"
    )
