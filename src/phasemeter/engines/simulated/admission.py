"""Who is served when: the slots, and the order of requests that scripts and cold starts count by."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from msgspec import Struct

from phasemeter.engines.simulated.script import Behaviour, Script, ScriptReader, merged


class Slots:
    """A limit on the requests served at once; the others wait, first come first served.

    A slot passes on with the stamp at which it became free, not with the time at which somebody noticed:
    in real time the next request starts when it should have, and lateness does not add up along a queue.
    """

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._waiting: deque[Place] = deque()

    def enter(self, place: Place, now_ns: int) -> None:
        """Ask for a slot; the place's `begin` is called with the stamp from which it is held, at once if
        it can."""
        if self._free is None or self._free > 0:
            if self._free is not None:
                self._free -= 1
            place.start(now_ns)
        else:
            self._waiting.append(place)

    def leave(self, place: Place, at_ns: int) -> None:
        """Give the slot back at `at_ns`, or stop waiting for one. Safe to call twice."""
        if place.gone:
            return
        place.gone = True
        if not place.held:
            self._waiting.remove(place)
        elif self._waiting:
            self._waiting.popleft().start(at_ns)
        elif self._free is not None:
            self._free += 1


class Place:
    """One request's place: waiting, held or gone. `begin` is called with the stamp from which the slot is
    held."""

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        self.held = False
        self.gone = False

    def start(self, at_ns: int) -> None:
        """The slot is this request's from `at_ns` on."""
        self.held = True
        self._begin(at_ns)


class Turn(Struct, frozen=True):
    """One request's number: `serial` among all, `of_shape` among those of its lengths; both from 0."""

    serial: int
    of_shape: int


class Turns:
    """Numbers the requests and decides what each is told to do: fault under script under the request's own
    wish."""

    def __init__(self, base: Behaviour, script: Script | None) -> None:
        self._base = base
        self._reader = ScriptReader(script) if script is not None else None
        self._serial = 0
        self._shapes: Counter[tuple[int, int]] = Counter()

    def take(self, prompt_tokens: int, max_tokens: int) -> Turn:
        """The next request's numbers."""
        shape = (prompt_tokens, max_tokens)
        turn = Turn(self._serial, self._shapes[shape])
        self._serial += 1
        self._shapes[shape] += 1
        return turn

    def behaviour(self, own: Behaviour, path: str, model: str | None) -> Behaviour:
        """What the next request does; takes a step of the script."""
        step = self._reader.take(path, model) if self._reader is not None else None
        return merged(self._base if step is None else merged(self._base, step), own)
