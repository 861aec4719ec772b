"""`phasemeter simulate`: a server of known truth, to test and calibrate clients with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from phasemeter.record.errors import InputError, PhasemeterError
from phasemeter.record.visible import visible

if TYPE_CHECKING:
    from phasemeter.engines.simulated.server import Settings, SimulatedServer
    from phasemeter.engines.simulated.truth import Jitter, Truth

EXAMPLE = """\b
Example:
  phasemeter simulate --port 8765 --ttft-ms 50 --itl-ms 10 --log sent.jsonl
  phasemeter simulate --fault stall:5:200 --jitter normal:1.5ms --slots 4
"""


@click.command(name="simulate", epilog=EXAMPLE)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one."
)
@click.option(
    "--model", "models", multiple=True, help="Model name to serve; may be repeated.  [default: simulated]"
)
@click.option("--ttft-ms", type=float, help="Slot to first chunk.  [default: 50]")
@click.option("--queue-ms", type=float, default=0.0, help="Instead of --ttft-ms: constant queue.")
@click.option(
    "--prefill-ms", type=float, default=0.0, help="Instead of --ttft-ms: constant part of the prefill."
)
@click.option("--prefill-us-per-token", type=float, default=0.0, help="Prefill per prompt token.")
@click.option(
    "--prefill-ns-per-token-squared", type=float, default=0.0, help="Prefill per prompt token squared."
)
@click.option("--itl-ms", type=float, default=10.0, show_default=True, help="Time of one token.")
@click.option("--itl-per-context-token-us", type=float, default=0.0, help="Added to it per token of context.")
@click.option("--tokens-per-chunk", type=int, default=1, show_default=True, help="Tokens in one event.")
@click.option("--first-chunk-tokens", type=int, help="Tokens in the first event, where it differs.")
@click.option(
    "--jitter", default="none", help="KIND:SIZE, kind uniform, normal or lognormal, size 2ms or 10%."
)
@click.option("--cold-first-ms", type=float, default=0.0, help="Added to the first request of every shape.")
@click.option("--slots", type=int, help="Requests served at once; the others wait.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the jitter.")
@click.option("--template-tokens", type=click.IntRange(0), default=0, help="Added to the prompt of a chat.")
@click.option("--max-context-tokens", type=click.IntRange(1), help="Refuse longer requests with 400.")
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME[:ARG]", help="For all requests; may be repeated."
)
@click.option(
    "--script", type=click.Path(path_type=Path), help="TOML file of steps, applied to requests in order."
)
@click.option("--log", "log_path", type=click.Path(path_type=Path), help="File for one JSON line a request.")
@click.option("--list-faults", is_flag=True, help="Name every fault and end.")
@click.option("--json", "as_json", is_flag=True, help='First line on stdout: {"url", "port", "pid"}.')
def command(**options: object) -> None:
    """Serve OpenAI's API on loopback with times that are known exactly.

    It logs what it sent and when (--log, GET /log), so that any client can be checked against it. A
    request can choose its own behaviour with the body field x_simulate; see docs/commands/simulate.md.
    """
    try:
        _run(options)
    except PhasemeterError as error:
        click.echo(f"phasemeter: {visible(str(error))}", err=True)
        raise SystemExit(error.exit_code) from None


def _run(options: dict[str, object]) -> None:
    if options["list_faults"]:
        _list_faults()
        return
    truth = _truth(options)
    settings = _settings(options)
    import asyncio
    import signal

    from phasemeter.engines.simulated.loop import FineLoop
    from phasemeter.engines.simulated.server import BUSY_STREAMS, start_server

    fine = FineLoop()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        server = await start_server(
            truth, settings, on_load=lambda streams: fine.spin(on=0 < streams <= BUSY_STREAMS)
        )
        try:
            _tell(server, as_json=bool(options["as_json"]))
            await stop.wait()
        finally:
            await server.close()
        _sum_up(server)

    with asyncio.Runner(loop_factory=fine.new_loop) as runner:
        runner.run(serve())


def _tell(server: SimulatedServer, *, as_json: bool) -> None:
    import json
    import os

    click.echo(f"listening on {server.url}", err=True)
    if as_json:
        click.echo(json.dumps({"url": server.url, "port": server.port, "pid": os.getpid()}))


def _sum_up(server: SimulatedServer) -> None:
    from phasemeter.engines.simulated.log import lateness_ns

    late = lateness_ns(server.log.entries())
    if late:
        p50, p99 = late[len(late) // 2] / 1e3, late[min(len(late) - 1, len(late) * 99 // 100)] / 1e3
        click.echo(
            f"{server.log.requests} requests; writes later than planned: p50 {p50:.0f} us, p99 {p99:.0f} us",
            err=True,
        )


def _list_faults() -> None:
    from phasemeter.engines.simulated.faults import FAULTS

    for fault in FAULTS.values():
        click.echo(f"{fault.usage:26} {fault.line}")


def _truth(options: dict[str, object]) -> Truth:
    from phasemeter.engines.simulated.truth import Truth, truth_of

    table = {name: options[name] for name in Truth.__struct_fields__ if name != "jitter"}
    parts = ("queue_ms", "prefill_ms", "prefill_us_per_token", "prefill_ns_per_token_squared")
    if table["ttft_ms"] is None and not any(table[name] for name in parts):
        table["ttft_ms"] = 50.0
    return truth_of(table | {"jitter": _jitter(cast("str", options["jitter"]))})


def _jitter(text: str) -> Jitter:
    """`normal:1.5ms` or `uniform:10%`."""
    import msgspec

    from phasemeter.engines.simulated.truth import Jitter

    kind, _, size = text.partition(":")
    table: dict[str, object] = {"kind": kind}
    try:
        if size.endswith("%"):
            table["relative"] = float(size[:-1]) / 100
        elif size:
            table["ms"] = float(size.removesuffix("ms"))
        return msgspec.convert(table, Jitter)
    except (ValueError, msgspec.ValidationError):
        raise InputError("--jitter", text, "write KIND:SIZE such as normal:1.5ms or uniform:10%") from None


def _settings(options: dict[str, object]) -> Settings:
    from phasemeter.engines.simulated.api import Limits
    from phasemeter.engines.simulated.faults import parse_faults
    from phasemeter.engines.simulated.script import load_script
    from phasemeter.engines.simulated.server import Settings

    script = cast("Path | None", options["script"])
    return Settings(
        host=cast("str", options["host"]),
        port=cast("int", options["port"]),
        limits=Limits(
            models=cast("tuple[str, ...]", options["models"]) or ("simulated",),
            template_tokens=cast("int", options["template_tokens"]),
            max_context_tokens=cast("int | None", options["max_context_tokens"]),
        ),
        faults=parse_faults(cast("tuple[str, ...]", options["faults"])),
        script=None if script is None else load_script(script),
        log_path=cast("Path | None", options["log_path"]),
    )
