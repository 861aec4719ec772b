"""What our HTTP client costs and how well it keeps time, beside a usual aiohttp client.

    python benchmarks/client_cost.py            run all (under 3 minutes), write benchmarks/results/
    python benchmarks/client_cost.py --quick    a few seconds, prints only

Three processes: a server that sends on an absolute schedule and logs each send, one client at a time,
and this one, which only starts them and compares the client's stamps with the server's log (both read the
system's monotonic clock). The clients take turns within each round, in alternating order, both on uvloop.

    CPU a token  CPU of the client process over the measured window (user, system, parsing) per token
    TTFT error   |client's (first token - sent) - server's (first token sent - request received)|
    ITL error    |client's gap - server's gap|, over every gap
    lag          client's stamp - the server's stamp right after its write, over every token

`sent` is what each client can know: ours stamps the write; the aiohttp client stamps before `session.post`,
as usual benchmark clients do, so a connection that has to be made first is in its TTFT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

TTFT_S = 0.1
ITL_S = 0.02
TOKENS = 64
CLIENTS = ("phasemeter", "aiohttp")
_PIECE = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "bench",
    "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
}


# the server


def serve() -> None:
    """Print the port, then serve until killed."""
    import uvloop

    uvloop.run(_serve())


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    log: dict[str, dict] = {}
    server = await loop.create_server(lambda: _Server(loop, log), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(payload: object) -> bytes:
    return _chunked(b"data: " + json.dumps(payload).encode() + b"\n\n")


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ROLE = _event(_PIECE | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
_TOKEN = _event(_PIECE)
_FINISH = _event(_PIECE | {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
_END = _FINISH + _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Server(asyncio.Protocol):
    """Reads whole requests; sends a role chunk at once and token i at received + TTFT + i x ITL."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: dict[str, dict]) -> None:
        self._loop = loop
        self._log = log
        self._pending = b""

    def connection_made(self, transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self._pending += data
        head, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return
        headers = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        if len(rest) < int(headers.get(b"content-length", b"0")):
            return
        self._pending = b""
        self._answer(head, headers, now_ns)

    def _answer(self, head: bytes, headers: dict[bytes, bytes], now_ns: int) -> None:
        if head.startswith(b"GET /log"):
            self._json(self._log)
            self._log.clear()
        elif head.startswith(b"GET /v1/models"):
            self._json({"object": "list", "data": [{"id": "bench"}]})
        elif head.startswith(b"GET"):
            self._json({"version": "bench"})
        else:
            name = headers.get(b"x-request-id", b"").decode()
            entry: dict = {"received_ns": now_ns, "sent_ns": [], "late_ns": []}
            if not name.startswith("probe"):
                self._log[name] = entry
            self._transport.write(_HEAD + _ROLE)
            self._later(entry, 0)

    def _later(self, entry: dict, i: int) -> None:
        due_ns = entry["received_ns"] + round((TTFT_S + i * ITL_S) * 1e9)
        wait_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._loop.call_later(wait_s, self._send, entry, i, due_ns)

    def _send(self, entry: dict, i: int, due_ns: int) -> None:
        self._transport.write(_TOKEN)
        now_ns = time.monotonic_ns()
        entry["sent_ns"].append(now_ns)
        entry["late_ns"].append(now_ns - due_ns)
        if i + 1 < TOKENS:
            self._later(entry, i + 1)
        else:
            self._transport.write(_END)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        self._transport.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))


# the clients: each yields {"id", "sent_ns", "stamps_ns"} for every stream


async def phasemeter_client(url: str, concurrency: int, each: int) -> dict:
    sys.path.insert(0, str(ROOT / "src"))
    from phasemeter.engines.openai_http import HttpOptions, OpenAIHttp
    from phasemeter.record.engine import GENERATED
    from phasemeter.record.request import Cell, Request

    engine = OpenAIHttp(HttpOptions(url=url, api="chat"))
    await engine.start()
    cell = Cell(input_tokens=4, output_tokens=TOKENS)

    async def one(name: str):
        return name, await engine.generate(Request(id=name, cell=cell, max_tokens=TOKENS, prompt="hello"))

    await one("warm-up")
    begun_ns = time.process_time_ns()
    replies = await _closed_loop(one, concurrency, each)
    received_ns = time.process_time_ns()
    results = [(name, reply.settle()) for name, reply in replies]
    ended_ns = time.process_time_ns()
    streams = [
        {
            "id": name,
            "sent_ns": result.sent_ns,
            "stamps_ns": [e.recv_ns for e in result.emissions if e.kind in GENERATED],
        }
        for name, result in results
    ]
    await engine.close()
    return {"cpu_ns": ended_ns - begun_ns, "parse_cpu_ns": ended_ns - received_ns, "streams": streams}


async def aiohttp_client(url: str, concurrency: int, each: int) -> dict:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(name: str):
            body = {
                "model": "bench",
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": TOKENS,
            }
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            stamps_ns = []
            pending = b""
            sent_ns = time.monotonic_ns()
            async with session.post(
                url + "/v1/chat/completions", json=body, headers={"X-Request-Id": name}
            ) as response:
                async for piece in response.content.iter_any():
                    now_ns = time.monotonic_ns()
                    pending += piece
                    *events, pending = pending.split(b"\n\n")
                    for event in events:
                        data = event.removeprefix(b"data: ")
                        if data == b"[DONE]":
                            continue
                        choices = json.loads(data)["choices"]
                        if choices and choices[0]["delta"].get("content"):
                            stamps_ns.append(now_ns)
            return {"id": name, "sent_ns": sent_ns, "stamps_ns": stamps_ns}

        await one("warm-up")
        begun_ns = time.process_time_ns()
        streams = await _closed_loop(one, concurrency, each)
        ended_ns = time.process_time_ns()
    return {"cpu_ns": ended_ns - begun_ns, "streams": streams}


async def _closed_loop(one, concurrency: int, each: int) -> list:
    """`concurrency` workers do `each` streams one after the other; they start spread over one gap."""
    done: list = []

    async def worker(w: int) -> None:
        await asyncio.sleep(ITL_S * w / concurrency)
        for k in range(each):
            stream = await one(f"s{w}-{k}")
            done.append(stream)

    await asyncio.gather(*(worker(w) for w in range(concurrency)))
    return done


def run_client(which: str, url: str, concurrency: int, each: int) -> None:
    import uvloop

    client = {"phasemeter": phasemeter_client, "aiohttp": aiohttp_client}[which]
    json.dump(uvloop.run(client(url, concurrency, each)), sys.stdout)


# the comparison


def measure(url: str, which: str, concurrency: int, each: int) -> dict:
    """One turn of one client; errors in microseconds."""
    command = [sys.executable, __file__, "--client", which, "--url", url]
    command += ["--concurrency", str(concurrency), "--each", str(each)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    log = _fetch_log(url)
    ttft, itl, lag, late, tokens = [], [], [], [], 0
    for stream in told["streams"]:
        server, ours = log[stream["id"]], stream["stamps_ns"]
        if len(ours) != TOKENS or len(server["sent_ns"]) != TOKENS:
            raise SystemExit(f"{which}: stream {stream['id']} has {len(ours)} tokens, not {TOKENS}")
        tokens += len(ours)
        theirs = server["sent_ns"]
        ttft.append(abs((ours[0] - stream["sent_ns"]) - (theirs[0] - server["received_ns"])) / 1e3)
        itl += [abs((ours[i] - ours[i - 1]) - (theirs[i] - theirs[i - 1])) / 1e3 for i in range(1, TOKENS)]
        lag += [(a - b) / 1e3 for a, b in zip(ours, theirs, strict=True)]
        late += [ns / 1e3 for ns in server["late_ns"]]
    out = {"us_per_token": told["cpu_ns"] / 1e3 / tokens, "tokens": tokens}
    if "parse_cpu_ns" in told:
        out["parse_us_per_token"] = told["parse_cpu_ns"] / 1e3 / tokens
    return out | {"ttft_error_us": ttft, "itl_error_us": itl, "lag_us": lag, "server_late_us": late}


def _fetch_log(url: str) -> dict:
    from urllib.request import urlopen

    with urlopen(url + "/log") as response:
        return json.load(response)


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _summary(turns: list[dict]) -> dict:
    out: dict = {
        "tokens": sum(t["tokens"] for t in turns),
        "us_per_token": {
            "median": round(_quantile([t["us_per_token"] for t in turns], 0.5), 1),
            "rounds": [round(t["us_per_token"], 1) for t in turns],
        },
    }
    if "parse_us_per_token" in turns[0]:
        out["parse_us_per_token"] = round(_quantile([t["parse_us_per_token"] for t in turns], 0.5), 1)
    for name in ("ttft_error_us", "itl_error_us", "lag_us", "server_late_us"):
        pooled = [value for turn in turns for value in turn[name]]
        out[name] = {"p50": round(_quantile(pooled, 0.5)), "p99": round(_quantile(pooled, 0.99))}
    return out


def run_all(levels: tuple[int, ...], rounds: int, seconds: float) -> dict:
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        each = max(1, round(seconds / (TTFT_S + ITL_S * TOKENS)))
        load_before = os.getloadavg()[0]
        turns: dict[tuple[int, str], list[dict]] = {(c, w): [] for c in levels for w in CLIENTS}
        for round_number in range(rounds):
            for concurrency in levels:
                for which in CLIENTS if round_number % 2 == 0 else CLIENTS[::-1]:
                    turn = measure(url, which, concurrency, each)
                    turns[concurrency, which].append(turn)
                    shown = f"{turn['us_per_token']:.1f} us/token"
                    print(
                        f"round {round_number + 1}  concurrency {concurrency:>3}  {which:<10}  {shown}",
                        file=sys.stderr,
                    )
    finally:
        server.kill()
        server.wait()
    return {
        "machine": _machine() | {"load_1min_before": round(load_before, 2)},
        "settings": {
            "ttft_ms": TTFT_S * 1e3,
            "itl_ms": ITL_S * 1e3,
            "tokens": TOKENS,
            "rounds": rounds,
            "each": each,
        },
        "results": [{"concurrency": c, "client": w, **_summary(found)} for (c, w), found in turns.items()],
    }


def _machine() -> dict:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    packages = ("httptools", "uvloop", "msgspec", "aiohttp")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def markdown(found: dict) -> str:
    machine, settings = found["machine"], found["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        "# Cost and timing error of the HTTP client",
        "",
        "Written by `benchmarks/client_cost.py`; its docstring defines the columns. Times in microseconds.",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['os']}, Python {machine['python']};"
        f" {versions}; load average before the run {machine['load_1min_before']}",
        f"- Streams: {settings['tokens']} tokens, TTFT {settings['ttft_ms']:g} ms, a token every"
        f" {settings['itl_ms']:g} ms; {settings['rounds']} rounds of {settings['each']} streams each",
        "",
        "| concurrency | client | CPU a token (of it parsing) | TTFT error p50 / p99 | ITL error p50 / p99 "
        "| lag p50 / p99 | server late p99 |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["results"]:
        parse = f" ({row['parse_us_per_token']:.1f})" if "parse_us_per_token" in row else ""
        cells = [
            f"{row[name]['p50']} / {row[name]['p99']}" for name in ("ttft_error_us", "itl_error_us", "lag_us")
        ]
        lines.append(
            f"| {row['concurrency']} | {row['client']} | {row['us_per_token']['median']:.1f}{parse} | "
            + " | ".join(cells)
            + f" | {row['server_late_us']['p99']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--each", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
    elif asked.client:
        run_client(asked.client, asked.url, asked.concurrency, asked.each)
    elif asked.quick:
        print(markdown(run_all((1, 32), 1, 1.0)))
    else:
        found = run_all((1, 32, 128, 256), 3, 4.0)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "client_cost.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "client_cost.md").write_text(markdown(found))
        print(markdown(found))


if __name__ == "__main__":
    main()
