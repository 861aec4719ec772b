"""The flags of the installed vLLM: asked of its own parser once a version, kept in the user's cache.

`vllm serve --help=all` takes most of a minute; building the parser takes about ten seconds, so the answer is kept.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from phasemeter.engines.vllm_install import Installed, run_script
from phasemeter.record.errors import EngineError, InputError

_LIMIT_S = 240.0
_SCRIPT = """
import json, sys
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
def built():
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        try:
            from vllm.entrypoints.openai.cli_args import make_arg_parser
        except ImportError:
            from vllm.entrypoints.cli.serve import cmd_init  # loads the whole server, but has never moved
            return cmd_init()[0].subparser_init(FlexibleArgumentParser().add_subparsers())
    return make_arg_parser(FlexibleArgumentParser())
with open(sys.argv[1], "w") as file:
    json.dump(sorted({name for action in built()._actions for name in action.option_strings}), file)
"""

OURS: dict[str, str] = {
    "--model": "give the model by Phasemeter's own --model",
    "--host": "a server that Phasemeter starts listens on 127.0.0.1; start it yourself and give --url for another",
    "--uds": "a server that Phasemeter starts listens on 127.0.0.1; leave it out",
    "--api-key": "a server that Phasemeter starts is for this run alone and takes no key; leave it out",
    "--root-path": "leave it out, or start the server yourself and give --url",
    "--ssl-keyfile": "leave it out, or start the server yourself and give --url",
    "--ssl-certfile": "leave it out, or start the server yourself and give --url",
    "--headless": "a server without an API cannot be measured; leave it out",
    "--grpc": "Phasemeter measures the HTTP API; leave it out",
    "--dtype": "give it by Phasemeter's own --dtype",
}
"""Flags that a server started by us does not take from the user, and why."""


class _Kept(Struct, frozen=True):
    version: str | None
    where: str
    flags: frozenset[str]


async def known_flags(
    installed: Installed, environment: Mapping[str, str], cache: Path | None
) -> frozenset[str]:
    """Every flag of `vllm serve` in the installed version. `environment` is the one that vLLM would be started with;
    `cache` is a folder to keep the answer in, or None. Raises EngineError when that vLLM cannot even be imported."""
    kept = None if cache is None else cache / f"vllm-flags-{_key(installed)}.json"
    if kept is not None and (found := _read(kept, installed)) is not None:
        return found.flags
    with tempfile.TemporaryDirectory(prefix="phasemeter-") as name:
        told = Path(name) / "flags.json"
        death = await run_script(
            installed.python, _SCRIPT, (str(told),), environment, folder=Path(name), limit_s=_LIMIT_S
        )
        if death.code != 0:
            why = death.tail[-1] if death.tail else death.how
            raise EngineError(f"vLLM at {installed.where} cannot be used: {why}")
        flags = msgspec.json.decode(told.read_bytes(), type=frozenset[str])
    if kept is not None:
        _write(kept, _Kept(installed.version, installed.where, flags))
    return flags


def _key(installed: Installed) -> str:
    return hashlib.sha256(f"{installed.version}\n{installed.where}".encode()).hexdigest()[:16]


def _read(path: Path, installed: Installed) -> _Kept | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return found if (found.version, found.where) == (installed.version, installed.where) else None


def _write(path: Path, kept: _Kept) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(kept))
    except OSError:
        return  # a cache that cannot be written only costs time


def name_of(token: str) -> str | None:
    """The flag that a word of the command line names, as vLLM reads it, or None for a value: `_` is `-`, and
    `--compilation-config.mode` belongs to `--compilation-config`."""
    if re.match(r"-\d", token) or not token.startswith("-") or token in {"-", "--"}:
        return None
    name = token.partition("=")[0]
    return name.partition(".")[0].replace("_", "-") if name.startswith("--") else name


def given(flags: Sequence[str], *names: str) -> bool:
    """Whether any of `names` is among the user's flags."""
    return any(name_of(token) in names for token in flags)


def value_of(flags: Sequence[str], name: str) -> str | None:
    """The value that the user gave to `name` (`--name value` or `--name=value`; the last one counts), or None."""
    found: str | None = None
    for i, token in enumerate(flags):
        if name_of(token) != name:
            continue
        if "=" in token:
            found = token.partition("=")[2]
        elif i + 1 < len(flags) and name_of(flags[i + 1]) is None:
            found = flags[i + 1]
    return found


def check_ours(flags: Sequence[str]) -> None:
    """Raises InputError for a flag that a server of ours does not take from the user."""
    for token in flags:
        mend = OURS.get(name_of(token) or "")
        if mend is not None:
            raise InputError("engine flag", token, mend)


def check_known(flags: Sequence[str], known: frozenset[str], version: str | None) -> None:
    """Raises InputError, with the nearest names, for a flag that this vLLM does not have, and for a shortened one."""
    for token in flags:
        name = name_of(token)
        if name is None or name in known or _short(name, known):
            continue
        if whole := _abbreviated(name, known):
            raise InputError("engine flag", token, f"write it out, so that the record can name it: {whole}")
        near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(near)}?" if near else "see `vllm serve --help=all` there"
        raise InputError("engine flag", token, f"vLLM {version or 'there'} has no such flag; {hint}")


def _short(name: str, known: frozenset[str]) -> bool:
    """`-O3` is `-O 3`, `-tp2` is `-tp 2`."""
    return not name.startswith("--") and any(
        name.startswith(flag) for flag in known if not flag.startswith("--")
    )


def _abbreviated(name: str, known: frozenset[str]) -> str | None:
    """argparse takes any beginning that fits one flag alone. Taken here, `--hos` would be no `--host`, and a record
    would say that prefix caching is off where `--enable-prefix-c` put it on."""
    fits = [flag for flag in known if flag.startswith(name)] if name.startswith("--") else []
    return fits[0] if len(fits) == 1 else None
