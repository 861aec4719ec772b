"""How long a vLLM server took to come up, and with what: read from its log, in the words of 0.26 and 0.32."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

_SECONDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    # "Model loading took 17.7 GiB memory and 12.003756 seconds"; on a CPU only the building is told
    ("load_s", re.compile(r"Model loading took .* and ([\d.]+) seconds")),
    ("load_s", re.compile(r"Initializing model took ([\d.]+) seconds")),
    ("weights_s", re.compile(r"Loading weights took ([\d.]+) seconds")),
    ("compile_s", re.compile(r"torch\.compile (?:took|takes) ([\d.]+) s in total")),
    ("compile_s", re.compile(r"init engine \(.*\) took [\d.]+ s \(compilation: ([\d.]+) s")),
    ("warmup_s", re.compile(r"Initial profiling/warmup run took ([\d.]+) s")),
    ("capture_s", re.compile(r"Graph capturing finished in ([\d.]+) secs")),
    ("engine_s", re.compile(r"init engine \(.*?\) took ([\d.]+) s")),
)
_STAMP = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d ")
_CPU_WARMING, _CPU_WARM = "Warming up model for the compilation", "Warming up done."
_FACTS = re.compile(r"Initializing a V1 LLM engine")
_FACT_FIELDS = {
    "dtype": re.compile(r"\bdtype=(?:torch\.)?(\w+)"),
    "device": re.compile(r"\bdevice_config=(?:device\(type=')?(\w+)"),
    "load_format": re.compile(r"\bload_format=(?:LoadFormat\.)?(\w+)"),
    "enforce_eager": re.compile(r"\benforce_eager=(\w+)"),
}
_KV = re.compile(r"KV cache size: ([\d,]+) tokens")
_ATTENTION = re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend")


class StartUp(Struct, frozen=True):
    """Seconds of each part of a start, None where the log does not tell it. The parts are the server's own and need not
    add up: loading includes reading the weights, `engine_s` is profiling, cache, compilation, capture and warm-up.

    import_s     from the start of the process until its first log line (imports, flags)
    load_s       the model built and its weights read; weights_s the reading alone
    compile_s    torch.compile
    capture_s    CUDA graphs captured
    warmup_s     first profiling or warm-up run (CPU: the whole warm-up, in which it also compiles)
    engine_s     the engine made ready after loading
    first_token_s  from the start of the process until the first token of all came back
    """

    import_s: float | None = None
    load_s: float | None = None
    weights_s: float | None = None
    compile_s: float | None = None
    capture_s: float | None = None
    warmup_s: float | None = None
    engine_s: float | None = None
    first_token_s: float | None = None

    def told(self) -> dict[str, str]:
        """The parts that are known, as text in seconds."""
        names = self.__struct_fields__
        return {name: f"{value:.2f}" for name in names if (value := getattr(self, name)) is not None}


class LogReader:
    """Takes a server's lines as they come, each with the seconds since its start (of our own clock, when the line was
    read)."""

    def __init__(self) -> None:
        self.startup = StartUp()
        self.facts: dict[str, str] = {}
        self._warming_s: float | None = None

    def line(self, text: str, at_s: float) -> None:
        """Read one line."""
        if self.startup.import_s is None and _STAMP.search(text):
            self.startup = replace(self.startup, import_s=at_s)
        for name, pattern in _SECONDS:
            found = pattern.search(text)
            if found is not None:
                # several workers tell the same part: the slowest one holds the others up
                before = getattr(self.startup, name)
                self.startup = replace(self.startup, **{name: max(before or 0.0, float(found[1]))})
        if _CPU_WARMING in text:
            self._warming_s = at_s
        elif _CPU_WARM in text and self._warming_s is not None:
            self.startup = replace(self.startup, warmup_s=at_s - self._warming_s)
        self._fact(text)

    def _fact(self, text: str) -> None:
        if _FACTS.search(text):
            for name, pattern in _FACT_FIELDS.items():
                if (found := pattern.search(text)) is not None:
                    self.facts[name] = found[1]
        if (found := _KV.search(text)) is not None:
            self.facts["kv_cache_tokens"] = found[1].replace(",", "")
        if (found := _ATTENTION.search(text)) is not None:
            self.facts["attention"] = found[1]

    def ready(self, at_s: float) -> None:
        """The first token has come back."""
        self.startup = replace(self.startup, first_token_s=at_s)
