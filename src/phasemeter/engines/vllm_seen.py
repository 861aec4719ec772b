"""What a vLLM server saw of each request, as our plugin (`plugins/phasemeter-vllm`) tells it.

The plugin runs inside the server and appends JSON lines to a file; `SeenFile` reads what was appended and
turns vLLM's request ids back into ours. A server can be given the plugin without an installation:
`plugin_path` is a folder to put first on its PYTHONPATH.

vLLM names a request after our X-Request-Id: `cmpl-ID-0` (0 numbers the prompts of one call) or `chatcmpl-ID`
(`chatcmpl-ID_0` where a call holds several). Versions differ in whether a random suffix of 8 hex digits
follows and whether a sequence of n > 1 is named `1_cmpl-ID-0`; 0.26 and 0.32 do neither, both records carry
one name.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import Counter
from importlib import resources
from pathlib import Path
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from phasemeter.record.engine import EngineReport, EngineStep, SeenRequest

FILE_VARIABLE = "PHASEMETER_VLLM_FILE"
"""The server's environment variable that names the file (or `unix:PATH`)."""
STEPS_VARIABLE = "PHASEMETER_VLLM_STEPS"
"""Set to 1, every engine step is told as well."""
STEPS_FLAG = "--enable-logging-iteration-details"
"""The vLLM flag without which a step's tokens and duration are not known."""

SOURCE = "vllm plugin"

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_COMPLETION = re.compile(r"(?:\d+_)?cmpl-(.+)-\d{1,5}(?:-[0-9a-f]{8})?")
_CHAT = re.compile(r"(?:\d+_)?chatcmpl-(.+?)(?:_\d{1,5})?")
_RANDOM = re.compile(r"(.+-\d{6,}(?:_\d{1,5})?)-[0-9a-f]{8}")


class _Line(Struct, frozen=True):
    """Any line of the plugin's file; what it does not hold is None."""

    type: str
    engine_ns: int
    engine_index: int | None = None
    vllm: str | None = None
    request_id: str | None = None
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    e2e_ns: int | None = None
    generated_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    duration_ns: int | None = None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None


_decoder = msgspec.json.Decoder(_Line)


class SeenFile:
    """Follows the plugin's file. `damaged` counts lines that could not be read, `vllm` is the version that
    the server told, `engines` the engines that were heard of (more than one with data parallelism)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self.vllm: str | None = None
        self.engines: set[int] = set()
        self._offset = 0
        self._rest = b""
        self._sequences: Counter[str] = Counter()

    def read(self) -> list[SeenRequest | EngineStep]:
        """What was appended since the last call; a line without its end is kept for the next one. A file that
        is not there yet, or cannot be read, holds nothing."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                appended = file.read()
        except OSError:
            return []
        self._offset += len(appended)
        *lines, self._rest = (self._rest + appended).split(b"\n")
        return [seen for line in lines if line.strip() and (seen := self._one(line)) is not None]

    def _one(self, data: bytes) -> SeenRequest | EngineStep | None:
        try:
            line = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.damaged += 1
            return None
        if line.type in {"request", "step"} and line.engine_index is not None:
            self.engines.add(line.engine_index)
        if line.type == "start":
            self.vllm = line.vllm
        if line.type == "step":
            return _step(line)
        if line.type != "request" or line.request_id is None:
            return None
        request = our_id(line.request_id)
        index = self._sequences[request]
        self._sequences[request] += 1
        return SeenRequest(
            request, _report(line), index=index, engine_ns=line.engine_ns, engine=line.engine_index
        )


def our_id(vllm_id: str) -> str:
    """The X-Request-Id that we sent, from the id that vLLM made of it; an id of another form is given back as
    it is (a request of somebody else)."""
    whole = _RANDOM.fullmatch(vllm_id) if "chatcmpl-" in vllm_id else None
    name = whole[1] if whole is not None else vllm_id
    found = _CHAT.fullmatch(name) or _COMPLETION.fullmatch(name)
    return vllm_id if found is None else unquote(found[1])


def _report(line: _Line) -> EngineReport:
    """A request that never got a token (it was refused, or asked for none) has no prefill and no decode: vLLM
    then takes differences of stamps that were never set."""
    began = line.generated_tokens != 0
    return EngineReport(
        source=SOURCE,
        queue_ns=_duration(line.queue_ns),
        prefill_ns=_duration(line.prefill_ns) if began else None,
        decode_ns=_duration(line.decode_ns) if began else None,
        e2e_ns=_duration(line.e2e_ns),
        cached_tokens=line.cached_tokens,
        preemptions=line.preemptions,
        n_tokens=line.generated_tokens,
    )


def _duration(ns: int | None) -> int | None:
    return ns if ns is not None and ns >= 0 else None


def _step(line: _Line) -> EngineStep:
    return EngineStep(
        engine_ns=line.engine_ns,
        duration_ns=line.duration_ns,
        prefill_requests=line.prefill_requests,
        prefill_tokens=line.prefill_tokens,
        decode_requests=line.decode_requests,
        decode_tokens=line.decode_tokens,
        running=line.running,
        waiting=line.waiting,
        kv_usage_ratio=line.kv_usage_ratio,
        engine=line.engine_index,
    )


def plugin_source() -> str:
    """The plugin's one module, as it ships in this package (a test holds it equal to the one in plugins/)."""
    data = resources.files("phasemeter.engines").joinpath("data", "phasemeter_vllm.py.txt")
    return data.read_text("utf-8")


def plugin_version(source: str) -> str:
    """The version that the plugin's module names."""
    found = _VERSION.search(source)
    return "0" if found is None else found[1]


def plugin_path() -> Path | None:
    """A folder with the plugin and its entry point, to put first on a server's PYTHONPATH; None where no
    folder can be written. It lies in the user's cache under a name made of its content, so it is written once
    and never changed; where that is not possible, in a new temporary folder."""
    source = plugin_source()
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    try:
        cache = Path.home() / ".cache" / "phasemeter"
        folder = cache / f"vllm-plugin-{digest}"
        if not _holds(folder, source):
            cache.mkdir(parents=True, exist_ok=True)
            _replace(folder, source)
        return folder
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        pass
    try:
        folder = Path(tempfile.mkdtemp(prefix="phasemeter-vllm-"))
        write_plugin(folder, source)
    except OSError:
        return None
    return folder


def write_plugin(folder: Path, source: str) -> None:
    """Write the package and the metadata that `importlib.metadata` finds it by, as an installation would."""
    package = folder / "phasemeter_vllm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(source, "utf-8")
    version = plugin_version(source)
    info = folder / f"phasemeter_vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: phasemeter-vllm\nVersion: {version}\n", "utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[vllm.stat_logger_plugins]\nphasemeter = phasemeter_vllm:PhasemeterStatLogger\n", "utf-8"
    )


def _holds(folder: Path, source: str) -> bool:
    """Whole: the metadata is written after the module, so its presence says that the module is complete."""
    module = folder / "phasemeter_vllm" / "__init__.py"
    points = folder / f"phasemeter_vllm-{plugin_version(source)}.dist-info" / "entry_points.txt"
    try:
        return points.is_file() and module.read_text("utf-8") == source
    except (OSError, UnicodeDecodeError):
        return False


def _replace(folder: Path, source: str) -> None:
    """Build beside and rename, so that a server that starts at this moment never sees half of it."""
    made = Path(tempfile.mkdtemp(prefix=".vllm-plugin-", dir=folder.parent))
    made.chmod(0o755)
    write_plugin(made, source)
    try:
        made.rename(folder)
    except OSError:
        # somebody was quicker, or what lies there is broken: mend it in place
        shutil.rmtree(made, ignore_errors=True)
        write_plugin(folder, source)
