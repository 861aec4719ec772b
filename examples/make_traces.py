"""Make the sample traces that the package ships: synthetic, in each public format, the same bytes on every run.

    python examples/make_traces.py [FOLDER]

Ten minutes of traffic whose rate rises and falls, lognormal lengths, and (Mooncake) prompts that share blocks: a system
prompt, and conversations that grow. Nobody's requests are in them; the real traces are named in docs/workloads.md.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parents[1] / "src/phasemeter/measure/data"
SECONDS = 600


def moments(draw: random.Random, mean_rate: float) -> Iterator[float]:
    """Poisson arrivals whose rate swings by 60 % with a period of 200 s, by thinning."""
    most, at = mean_rate * 1.6, 0.0
    while True:
        at -= math.log(1 - draw.random()) / most
        if at >= SECONDS:
            return
        if draw.random() * most < mean_rate * (1 + 0.6 * math.sin(2 * math.pi * at / 200)):
            yield at


def length(draw: random.Random, median: float, sigma: float, most: int) -> int:
    """Lognormal by Box and Muller's method, drawn again until it fits."""
    while True:
        normal = math.sqrt(-2 * math.log(1 - draw.random())) * math.cos(2 * math.pi * draw.random())
        tokens = round(median * math.exp(sigma * normal))
        if 1 <= tokens <= most:
            return tokens


def azure() -> str:
    draw, lines = random.Random("azure"), ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at in moments(draw, 3.0):
        ticks = round(at * 1e7)  # of 100 ns, as in the original
        clock = f"2026-01-01 {10 + ticks // 36_000_000_000:02d}:{ticks // 600_000_000 % 60:02d}"
        clock += f":{ticks // 10_000_000 % 60:02d}.{ticks % 10_000_000:07d}"
        lines.append(f"{clock},{length(draw, 1000, 1.0, 7000)},{length(draw, 150, 0.8, 1500)}")
    return "\n".join(lines) + "\n"


def burstgpt() -> str:
    draw = random.Random("burstgpt")
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for at in moments(draw, 2.0):
        asked, answered = length(draw, 400, 1.0, 4000), length(draw, 200, 0.9, 2000)
        if draw.random() < 0.03:
            answered = 0  # a request that failed
        model = "ChatGPT" if draw.random() < 0.8 else "GPT-4"
        kind = "Conversation log" if draw.random() < 0.7 else "API log"
        lines.append(f"{int(at)},{model},{asked},{answered},{asked + answered},{kind}")
    return "\n".join(lines) + "\n"


def mooncake() -> str:
    draw, lines, fresh = random.Random("mooncake"), [], 1
    open_ones: list[tuple[list[int], int]] = []
    for at in moments(draw, 1.0):
        # Half of the requests go on with a conversation: its whole blocks again, and some new ones.
        blocks, said = draw.choice(open_ones) if open_ones and draw.random() < 0.5 else ([0], 512)
        tokens, output = said + length(draw, 1500, 0.8, 12_000), length(draw, 250, 0.8, 2000)
        count = -(-tokens // 512)
        blocks = [*blocks, *range(fresh, fresh + count - len(blocks))]
        fresh = max(fresh, blocks[-1] + 1)
        line = {
            "timestamp": round(at * 1e3),
            "input_length": tokens,
            "output_length": output,
            "hash_ids": blocks,
        }
        lines.append(json.dumps(line))
        if tokens < 30_000:
            open_ones.append((blocks[: tokens // 512], tokens // 512 * 512))
    return "\n".join(lines) + "\n"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("azure-sample.csv", azure()),
        ("burstgpt-sample.csv", burstgpt()),
        ("mooncake-sample.jsonl", mooncake()),
    ):
        (folder / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
