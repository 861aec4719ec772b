"""The command line: one file a command; the only place that prints, exits, wires sinks or reads the environment.

Commands are a dict literal and load when they are asked for, so that `--help` needs neither numpy nor an HTTP client.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import cast

import click

from phasemeter.record.errors import PhasemeterError
from phasemeter.record.visible import visible

COMMANDS: dict[str, str] = {
    "run": "Measure a model or server, explain where the time goes, write the report.",
    "measure": "Measure a grid of lengths and concurrency into a run file.",
    "explain": "Say where the time of a run went, and why.",
    "audit": "Judge claims about inference times by arithmetic.",
    "fit": "Fit a model of prefill and decode time to runs of one machine.",
    "predict": "Predict lengths, batches, number formats, models and chips that were not measured.",
    "whatif": "Simulate a load on an engine that a fitted model describes.",
    "capacity": "Say how many replicas, with which flags, carry a traffic within objectives.",
    "compare": "Say what changed between two measurements; gate a change in CI.",
    "report": "Write a run's report as a page that works offline.",
    "simulate": "Serve a model of known timing, to calibrate clients with.",
    "hardware": "List the hardware table; measure this machine's ceilings.",
    "models": "List model shapes; show one with its work and floors.",
    "doctor": "Say what on this machine would spoil a measurement.",
}
"""Name and one-line help of every command; the command itself is `command` in `phasemeter.cli.NAME`."""


class _Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"phasemeter.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from phasemeter import __version__

        click.echo(f"phasemeter {__version__}")
        ctx.exit()


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def cli() -> None:
    """Where the time of an LLM request goes, why, and what makes it faster.

    \b
    Measure ERNIE-4.5-0.3B (random weights) on this machine and explain it:
      phasemeter run --engine local --model ernie-4.5-0.3b --input-tokens 64,128,256 --output-tokens 16
    Measure a running OpenAI-compatible server:
      phasemeter run --engine openai --url http://127.0.0.1:8000 --input-tokens 64,512 --output-tokens 64
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line; every expected error is one line on stderr and an exit code, never a traceback."""
    _open_standard_streams()
    code: object = 0
    stdout = sys.stdout
    try:
        code = cli.main(args=args, prog_name="phasemeter", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except PhasemeterError as error:
        _fail(str(error), error.exit_code)
    except SystemExit:
        if (
            sys.stdout is stdout
        ):  # click wraps it when a pipe broke, and ends with 1, which is a gate's code here
            raise
        _leave_unread()
    except BrokenPipeError:
        _leave_unread()
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_PRINT:
            raise
        _silence()
        _fail(f"the output cannot be written ({error.strerror})", 2)
    sys.exit(code if isinstance(code, int) else 0)


_CANNOT_PRINT = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})


def _fail(message: str, code: int) -> None:
    with contextlib.suppress(OSError):  # the exit code still tells
        click.echo(f"phasemeter: {visible(' '.join(message.split()))}", err=True)
    sys.exit(code)


def _leave_unread() -> None:
    """Whoever read our output has gone; there is nobody left to tell."""
    _silence()
    sys.exit(0)


def _silence() -> None:
    """What is still buffered goes nowhere, so that the interpreter's last flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # under a test, stdout may be no file
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _open_standard_streams() -> None:
    """Open what we were started without (`>&-`): else a socket would get the number of a standard stream, on which
    uvloop ends the process, and a run file could get lines that were meant for stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    stdout = cast("object", sys.stdout)
    if isinstance(stdout, io.TextIOWrapper):  # a character that the encoding lacks becomes a question mark
        stdout.reconfigure(errors="replace")
