"""The server beside the run, against a real HTTP server that serves pages of vLLM."""

from __future__ import annotations

import asyncio
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.metrics_page import MetricsPage
from phasemeter.engines.openai_http import OpenAIHttp
from phasemeter.measure import scrape as scrape_module
from phasemeter.measure.scrape import Scraping
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.run import Sample
from phasemeter.record.scrape import MetricsPlace, Moment, Scrape

BODIES = Path(__file__).parents[1] / "engines" / "bodies"
VLLM = (BODIES / "vllm_0.32_metrics.txt").read_text()


class Server(ThreadingHTTPServer):
    """Serves `page(names)` at /metrics, over kept connections, and counts what it is asked."""

    daemon_threads = True

    def __init__(self, page, status=200):
        self.page, self.status = page, status
        self.asked: list[tuple[str, ...]] = []
        self.keys: set[str | None] = set()
        self.connections = 0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def place(self):
        return MetricsPlace(f"http://127.0.0.1:{self.server_port}/metrics")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self):
        super().setup()
        self.server.connections += 1

    def do_GET(self):
        names = tuple(parse_qs(urlsplit(self.path).query).get("name[]", ()))
        self.server.asked.append(names)
        self.server.keys.add(self.headers.get("Authorization"))
        body = self.server.page(names).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def serve():
    held = []

    def start(page, **options):
        server = Server(page, **options)
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        held.append((server, thread))
        return server

    yield start
    for server, thread in held:
        server.shutdown()
        server.server_close()
        thread.join()


def restricted(names):
    """As prometheus_client answers: the named samples alone."""
    kept = (line for line in VLLM.splitlines() if not names or line.partition("{")[0] in names)
    return "\n".join(kept) + "\n"


class Engine:
    def __init__(self, place):
        self.place = place

    def metrics_place(self):
        return self.place


async def beside(engine, busy_s=0.35, **options):
    lines = []
    async with Scraping(engine, MonotonicClock(), lines.append, **options) as scraping:
        await asyncio.sleep(busy_s)
        scraping.flush()
        lines.append("flushed")
    return lines


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(scrape_module, "_SETTLE_S", 0.01)


async def test_a_run_is_framed_by_two_scrapes_and_sampled_in_between(serve):
    server = serve(restricted)
    lines = await beside(Engine(server.place), every_s=0.1, probes=(lambda: {"gpu_power_w": 300.0},))
    assert isinstance(lines[0], Scrape)
    assert isinstance(lines[-1], Scrape)
    assert (lines[0].moment, lines[-1].moment) == (Moment.BEFORE, Moment.AFTER)
    assert lines[0].histograms["prefill"].count == 7
    samples = [line for line in lines if isinstance(line, Sample)]
    assert 2 <= len(samples) <= 6
    assert lines.index("flushed") > lines.index(samples[0])
    assert all(lines[0].t_ns <= sample.t_ns <= lines[-1].t_ns for sample in samples)
    stamps = [sample.t_ns for sample in samples]
    assert stamps == sorted(stamps)
    assert samples[0].values["server_generated_tokens"] == 73.0
    assert samples[0].values["gpu_power_w"] == 300.0
    assert server.connections == 1
    # the thread asks for few names, the frames for the whole page
    assert {len(names) for names in server.asked} == {0, 5}


async def test_a_server_that_takes_no_names_is_asked_for_its_whole_page(serve):
    server = serve(lambda names: "" if names else VLLM)
    lines = await beside(Engine(server.place), every_s=0.05)
    samples = [line for line in lines if isinstance(line, Sample)]
    assert "server_generated_tokens" not in samples[0].values
    assert samples[-1].values["server_generated_tokens"] == 73.0


async def test_zero_takes_no_samples_but_frames_all_the_same(serve):
    server = serve(restricted)
    lines = await beside(Engine(server.place), every_s=0)
    assert [type(line) for line in lines] == [Scrape, str, Scrape]


async def test_a_server_of_another_kind_is_sampled_and_not_framed(serve):
    page = (BODIES / "llamacpp_metrics.txt").read_text()
    lines = await beside(Engine(serve(lambda names: page).place), every_s=0.1)
    assert {type(line) for line in lines} == {Sample, str}
    assert lines[0].values["server_waiting_requests"] == 46.0


@pytest.mark.parametrize("page", ["", "<html>hello</html>", "up 1\n"])
async def test_a_page_without_anything_known_is_left_alone(serve, page):
    server = serve(lambda names: page)
    assert await beside(Engine(server.place), every_s=0.05) == ["flushed"]
    assert len(server.asked) == 1


async def test_no_metrics_no_server_no_engine_are_no_error(serve):
    for engine in (Engine(serve(lambda names: VLLM, status=404).place), Engine(None), object()):
        assert await beside(engine, every_s=0.05, busy_s=0) == ["flushed"]
    gone = Engine(MetricsPlace("http://127.0.0.1:1/metrics"))
    assert await beside(gone, every_s=0.05, busy_s=0) == ["flushed"]


async def test_metrics_that_go_away_leave_their_values_out(serve):
    pages = []

    def page(names):
        pages.append(names)
        return restricted(names) if len(pages) < 5 else "gone\n"

    lines = await beside(Engine(serve(page).place), every_s=0.05, probes=(lambda: {"gpu_power_w": 1.0},))
    samples = [line for line in lines if isinstance(line, Sample)]
    assert "server_generated_tokens" in samples[0].values
    assert "server_generated_tokens" not in samples[-1].values
    assert samples[-1].values["gpu_power_w"] == 1.0


async def test_after_an_error_nobody_waits_for_the_server(serve):
    server = serve(restricted)
    lines = []

    async def broken():
        async with Scraping(Engine(server.place), MonotonicClock(), lines.append, every_s=0.05):
            await asyncio.sleep(0.12)
            raise KeyError

    with pytest.raises(KeyError):
        await broken()
    assert [line.moment for line in lines if isinstance(line, Scrape)] == [Moment.BEFORE]
    assert any(isinstance(line, Sample) for line in lines)


async def test_a_frame_waits_until_the_server_has_counted(serve, monkeypatch):
    """The last request is counted a little after its last token was sent."""
    seen = []

    def page(names):
        seen.append(names)
        late = "vllm:request_prefill_time_seconds_count"
        count = 5 + min(len(seen), 4)
        return "\n".join(
            f"{late}{{}} {count}" if line.startswith(late) else line for line in VLLM.splitlines()
        )

    lines = await beside(Engine(serve(page).place), every_s=0, busy_s=0)
    assert lines[0].histograms["prefill"].count == 9


async def test_a_slow_page_does_not_hold_the_loop(serve):
    """The thread waits, the loop does not."""

    def page(names):
        if names:
            time.sleep(0.2)
        return restricted(names)

    server = serve(page)
    ticks = 0
    async with Scraping(Engine(server.place), MonotonicClock(), lambda line: None, every_s=0.01):
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            await asyncio.sleep(0.005)
            ticks += 1
    assert ticks > 20
    assert sum(bool(names) for names in server.asked) <= 4


def test_a_closed_connection_is_replaced_once(serve):
    server = serve(restricted)
    page = MetricsPage(server.place)
    assert page.read() == page.read() == restricted(()).encode()
    assert server.connections == 1
    assert page._held is not None
    page._held.sock.close()
    assert page.read("name[]=up") == b"\n"
    assert server.connections == 2
    page.close()
    page.close()


def test_the_key_goes_with_it_and_shows_nowhere(serve):
    server = serve(restricted)
    engine = OpenAIHttp(HttpOptions(url=f"http://127.0.0.1:{server.server_port}/v1", api_key="secret-key"))
    place = engine.metrics_place()
    assert "secret-key" not in repr(place)
    page = MetricsPage(place)
    assert page.read() is not None
    page.close()
    assert server.keys == {"Bearer secret-key"}


def test_metrics_are_looked_for_beside_v1():
    for url, place in (
        ("http://h:1/v1", "http://h:1/metrics"),
        ("https://h/base/v1/", "https://h/base/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics"),
    ):
        assert OpenAIHttp(HttpOptions(url=url)).metrics_place().url == place
