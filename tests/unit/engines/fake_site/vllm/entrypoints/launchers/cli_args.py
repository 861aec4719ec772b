from __future__ import annotations

import argparse
import os
from pathlib import Path


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    if "FAKE_COUNT" in os.environ:
        with Path(os.environ["FAKE_COUNT"]).open("a") as file:
            file.write("built\n")
    parser.add_argument("model_tag", nargs="?")
    for name in ("host", "dtype", "load-format", "max-model-len", "served-model-name", "tokenizer"):
        parser.add_argument(f"--{name}")
    for name in ("port", "max-num-seqs"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int)
    parser.add_argument("--compilation-config", "-cc")
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    if os.environ.get("FAKE_VERSION") != "old":
        parser.add_argument("--enable-per-request-metrics", action=argparse.BooleanOptionalAction)
        parser.add_argument("--enable-logging-iteration-details", action="store_true")
        parser.add_argument("--otlp-traces-endpoint")
    return parser
