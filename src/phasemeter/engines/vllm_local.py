"""vLLM without its HTTP server: the engine runs in a child process of vLLM's own environment (`vllm_child`), and
every request brings back what the engine core saw of it.

Against `vllm_server` with the same flags this tells the engine from the front end: no HTTP, no SSE, no chat template,
and with a preset no tokenizer either. What is left of a front end here is one pipe each way, vLLM's own hand-over to
the engine core, and its detokeniser where there is a tokenizer.

    sent = written to the pipe --front end--> queued --queue--> scheduled --prefill--> first token --decode--> last

A piece is stamped when its bytes are read from the pipe, before they are parsed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from phasemeter.engines.byte_tokenizer import ByteTokenizer, pieces
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.engine import Emission, EmissionKind, EngineInfo, EngineReport, Outcome, Result
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Request, Usage

SOURCE = "vllm in process"
KIND = "vllm-local"
_CHILD = Path(__file__).with_name("vllm_child.py")
_PROBE = Request(id="probe", cell=msgspec.convert({"input_tokens": 4, "output_tokens": 2}, type=dict), max_tokens=2)
