"""Workers on other machines, through Ray: an actor relays between us and the same worker process as here.

Two machines have two monotonic clocks. How far theirs runs ahead of ours is measured before and after the run, by the
exchange that took least time; half of that time is the uncertainty, and it is written into the record. No duration
inside a request depends on it; what is counted over all processes (in flight, rates) does, by that much.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import platform
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phasemeter import __version__
from phasemeter.measure.hands import Hand, Hire, ProcessHand
from phasemeter.measure.worker import Order
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.errors import EngineError, InputError

_PINGS = 60
_CHUNK_BYTES = 8 << 20


class Offset(Struct, frozen=True):
    """Their clock minus ours, and how far off that may be."""

    ahead_ns: int
    uncertainty_ns: int


class Ping(Struct, frozen=True):
    """One exchange: our clock before and after, theirs in between."""

    before_ns: int
    theirs_ns: int
    after_ns: int


def offset_of(pings: list[Ping]) -> Offset:
    """From the exchange that took least time: their reading lies inside it, its middle is taken (Cristian, 1989)."""
    best = min(pings, key=lambda ping: ping.after_ns - ping.before_ns)
    half_ns = (best.after_ns - best.before_ns + 1) // 2
    return Offset(best.theirs_ns - best.before_ns - half_ns, half_ns)


def joined_offset(first: Offset, last: Offset) -> Offset:
    """One offset for a run from the two around it: their middle, uncertain by theirs and by what the clocks moved
    against each other."""
    moved_ns = abs(last.ahead_ns - first.ahead_ns)
    return Offset(
        (first.ahead_ns + last.ahead_ns) // 2,
        max(first.uncertainty_ns, last.uncertainty_ns) + (moved_ns + 1) // 2,
    )


class Relay:
    """The actor: on its machine it holds one worker process and passes lines on."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phasemeter-")
        self._part = Path(self._folder.name) / "part.jsonl"
        self._hand: ProcessHand | None = None

    async def start(self) -> tuple[str, str]:
        """Start the process; this machine's name and the version of its Phasemeter."""
        self._hand = await ProcessHand.start(self._part.with_suffix(".log"))
        return platform.node(), __version__

    async def now_ns(self) -> int:
        """This machine's monotonic clock."""
        return MonotonicClock().now_ns()

    async def tell(self, line: bytes) -> None:
        """Pass a line on; in an order, the part's place becomes one of this machine."""
        if self._hand is not None:
            with contextlib.suppress(msgspec.DecodeError):
                order = msgspec.json.decode(line, type=Order)
                line = msgspec.json.encode(replace(order, out=str(self._part), cores=()))
            await self._hand.tell(line)

    async def hear(self) -> bytes:
        """The worker's next line; b"" at its end."""
        return b"" if self._hand is None else await self._hand.hear()

    async def interrupt(self) -> None:
        """What Ctrl-C does."""
        if self._hand is not None:
            await self._hand.interrupt()

    async def ended(self) -> int | None:
        """The worker's exit code."""
        return None if self._hand is None else await self._hand.ended()

    async def read(self, offset: int) -> bytes:
        """What its part holds from `offset` on, 8 MiB at the most."""
        if not self._part.exists():
            return b""
        with self._part.open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)


class RayHand:
    """A worker behind an actor. What it has written is fetched at every gate, so that a machine that goes away takes
    only its open stage with it."""

    def __init__(self, actor: Any, host: str, offset: Offset, clock: Clock, ray: Any) -> None:  # noqa: ANN401
        self._actor = actor
        self._clock = clock
        self._ray = ray
        self._fetched_bytes = 0
        self._first = offset
        self.host = host
        self.offset = offset

    @property
    def ahead_ns(self) -> int:
        """How far its clock runs ahead of ours."""
        return self.offset.ahead_ns

    @property
    def note(self) -> str:
        """The machine, and how its clock stands to ours."""
        ahead, unsure = self.offset.ahead_ns / 1e6, self.offset.uncertainty_ns / 1e6
        return f"on {self.host}, clock ahead by {ahead:.3f} ms, known to {unsure:.3f} ms"

    async def tell(self, line: bytes) -> None:
        """Give it a line."""
        with self._gone_is_oserror():
            await self._actor.tell.remote(line)

    async def hear(self) -> bytes:
        """Its next line; b"" when it or its machine has ended."""
        try:
            with self._gone_is_oserror():
                return await self._actor.hear.remote()
        except OSError:
            return b""

    async def interrupt(self) -> None:
        """What Ctrl-C does."""
        with contextlib.suppress(OSError), self._gone_is_oserror():
            await self._actor.interrupt.remote()

    async def ended(self) -> int | None:
        """Its exit code, None when its machine went away."""
        try:
            with self._gone_is_oserror():
                return await self._actor.ended.remote()
        except OSError:
            return None

    async def fetch(self, place: Path) -> None:
        """Append what is new in its part to `place`."""
        with contextlib.suppress(OSError), self._gone_is_oserror():
            with place.open("ab") as file:
                while data := await self._actor.read.remote(self._fetched_bytes):
                    file.write(data)
                    self._fetched_bytes += len(data)
            self.offset = joined_offset(self._first, await measure_offset(self._actor, self._clock))

    @contextlib.contextmanager
    def _gone_is_oserror(self) -> Generator[None]:
        try:
            yield
        except self._ray.exceptions.RayError as error:
            raise ConnectionError(str(error)) from None


async def measure_offset(actor: Any, clock: Clock) -> Offset:  # noqa: ANN401 - a Ray actor has no type
    """Exchange clocks with an actor."""
    pings: list[Ping] = []
    for _ in range(_PINGS):
        before_ns = clock.now_ns()
        theirs_ns = await actor.now_ns.remote()
        pings.append(Ping(before_ns, theirs_ns, clock.now_ns()))
    return offset_of(pings)


def hire_on(address: str, clock: Clock, tell: Callable[[str], None] = lambda _: None) -> Hire:
    """Workers on the Ray cluster at `address` ("auto", "HOST:PORT" or "ray://HOST:PORT"), spread over its machines.
    Raises InputError when Ray is not installed or the cluster cannot be reached."""
    ray = _connect(address)
    remote = ray.remote(Relay)

    async def hire(number: int, place: Path) -> Hand:
        actor = remote.options(scheduling_strategy="SPREAD", num_cpus=1, max_concurrency=8).remote()
        try:
            host, version = await actor.start.remote()
        except ray.exceptions.RayError as error:
            raise EngineError(f"Ray could not start worker {number + 1}: {_briefly(error)}") from None
        if version != __version__:
            mend = f"worker {number + 1} on {host} has Phasemeter {version}, this is {__version__}; make them one"
            raise InputError("--on", address, mend)
        hand = RayHand(actor, host, await measure_offset(actor, clock), clock, ray)
        tell(f"worker {number + 1} {hand.note}")
        return hand

    return hire


def disconnect() -> None:
    """Leave the cluster; its actors end with us."""
    importlib.import_module("ray").shutdown()


def _connect(address: str) -> Any:  # noqa: ANN401
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise InputError(
            "--on", address, "needs Ray here and on the cluster: pip install 'phasemeter[ray]'"
        ) from None
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (
        ConnectionError,
        ValueError,
        RuntimeError,
        TimeoutError,
        OSError,
        ray.exceptions.RayError,
    ) as error:
        ray.shutdown()  # half a connection would be in the way of the next one
        mend = f"no Ray cluster answers there ({_briefly(error)}); give auto, HOST:PORT or ray://HOST:PORT"
        raise InputError("--on", address, mend) from None
    return ray


def _briefly(error: BaseException) -> str:
    """Its message on one line; of a traceback that came along, the end."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:60]} ... {words[-140:]}"
