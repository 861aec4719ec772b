"""The simulated engine in process: real requests through the `Engine` seam, in real or in virtual time.

In virtual time (`run_virtual`) every stamp is the scheduled one, to the nanosecond. In real time a stamp is
the clock when the emission was handed over, as with any engine, and the schedule is absolute, so lateness
never adds up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from phasemeter.engines.simulated.admission import Place, Slots, Turns
from phasemeter.engines.simulated.plan import ERROR_MESSAGE, Ask, End, Piece, Plan, make_plan, stream
from phasemeter.engines.simulated.script import BYTES_ONLY, Behaviour, Script, Status, asked, behaviour_of
from phasemeter.engines.simulated.truth import Truth, rng_of
from phasemeter.record.clock import Clock
from phasemeter.record.engine import (
    GENERATED,
    Emission,
    EmissionKind,
    EngineInfo,
    EngineReport,
    Outcome,
    Result,
    Settled,
)
from phasemeter.record.errors import InputError
from phasemeter.record.request import Request

SleepUntil = Callable[[int], Awaitable[None]]


class SimulatedEngine:
    """An engine of known truth. `faults` holds for every request, `script` goes over it, `x_simulate` in a
    request's `extra` over both. `sleep_until(t_ns)` waits until a stamp of `clock`; the default waits on the
    running loop.

    Raises InputError when `faults` or `script` ask for what only bytes can show (`phasemeter simulate` can).
    """

    def __init__(
        self,
        truth: Truth,
        clock: Clock,
        *,
        faults: Behaviour | None = None,
        script: Script | None = None,
        sleep_until: SleepUntil | None = None,
        model: str = "simulated",
    ) -> None:
        for behaviour in (faults or Behaviour(), *(step.behaviour for step in (script or Script()).steps)):
            _refuse_bytes(behaviour)
        self._truth = truth
        self._clock = clock
        self._slots = Slots(truth.slots)
        self._turns = Turns(faults or Behaviour(), script)
        self._sleep_until = sleep_until or _sleeper(clock)
        self._model = model

    @property
    def info(self) -> EngineInfo:
        """What this engine is; its truth stands in the details, so that runs of another truth never merge."""
        return EngineInfo(
            kind="simulated",
            model=self._model,
            weights="none: the times are a known truth",
            takes_token_ids=True,
            honours_ignore_eos=True,
            details={f"truth {name}": str(value) for name, value in _told(self._truth)},
        )

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    async def generate(self, request: Request) -> Settled:
        """Run one request to its end; a request that cannot be is a Result with ENGINE_ERROR."""
        received_ns = self._clock.now_ns()
        try:
            behaviour = self._behaviour(request)
            ask = _ask(request, behaviour)
            turn = self._turns.take(ask.prompt_tokens, ask.max_tokens)
            truth = self._truth
            plan = make_plan(truth, behaviour, ask, turn.of_shape, rng_of(truth, turn.serial))
        except InputError as error:
            return Settled(
                Result(Outcome.ENGINE_ERROR, self._clock.now_ns(), connected_ns=received_ns, error=str(error))
            )
        if behaviour.status is not None:
            return Settled(_refusal(behaviour.status, received_ns))
        return Settled(await self._play(plan, behaviour, received_ns, request.cancel_after_tokens))

    def _behaviour(self, request: Request) -> Behaviour:
        wish = request.extra.get("x_simulate")
        own = Behaviour() if wish is None else behaviour_of(wish)
        _refuse_bytes(own)
        return self._turns.behaviour(own, "", self._model)

    async def _play(
        self, plan: Plan, behaviour: Behaviour, received_ns: int, quit_after: int | None
    ) -> Result:
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        place = Place(begun.set_result)
        self._slots.enter(place, received_ns)
        left_ns: int | None = None
        try:
            start_ns = await begun
            emissions: list[Emission] = []
            for piece in stream(plan):
                await self._sleep_until(start_ns + piece.offset_ns)
                emissions.append(_emission(piece, self._clock.now_ns()))
                if quit_after is not None and _tokens(emissions) >= quit_after:
                    return _given_up(received_ns, emissions)
            await self._sleep_until(start_ns + plan.end_ns)
            if plan.end is End.HANG:
                await asyncio.get_running_loop().create_future()  # until somebody gives up on it
            left_ns = start_ns + plan.end_ns
        finally:
            self._slots.leave(place, self._clock.now_ns() if left_ns is None else left_ns)
        return _result(plan, behaviour, received_ns, start_ns, tuple(emissions), self._clock.now_ns())


def _told(truth: Truth) -> list[tuple[str, object]]:
    """What differs from the plainest truth; jitter as its own table."""
    plain = msgspec.to_builtins(Truth())
    return [(name, value) for name, value in msgspec.to_builtins(truth).items() if value != plain[name]]


def _result(
    plan: Plan,
    behaviour: Behaviour,
    received_ns: int,
    start_ns: int,
    emissions: tuple[Emission, ...],
    end_ns: int,
) -> Result:
    outcome, error = _outcome(plan, behaviour)
    wants_usage = any(emission.kind is EmissionKind.USAGE for emission in emissions)
    return Result(
        outcome=outcome,
        end_ns=end_ns,
        connected_ns=received_ns,
        sent_ns=received_ns,
        first_byte_ns=emissions[0].recv_ns if emissions else None,
        emissions=emissions,
        error=error,
        finish_reason=plan.finish,
        usage=plan.usage if wants_usage else None,
        report=EngineReport(
            source="simulated",
            queue_ns=start_ns - received_ns + plan.queue_ns,
            prefill_ns=plan.prefill_ns,
            decode_ns=plan.decode_ns,
            cached_tokens=plan.usage.cached_tokens,
            n_tokens=plan.n_tokens,
        ),
    )


def _tokens(emissions: list[Emission]) -> int:
    return sum(emission.n_tokens or 0 for emission in emissions)


def _given_up(received_ns: int, emissions: list[Emission]) -> Result:
    return Result(
        outcome=Outcome.CANCELLED,
        end_ns=emissions[-1].recv_ns,
        connected_ns=received_ns,
        sent_ns=received_ns,
        first_byte_ns=emissions[0].recv_ns,
        emissions=tuple(emissions),
        error=f"given up on purpose after {_tokens(emissions)} tokens",
    )


def _outcome(plan: Plan, behaviour: Behaviour) -> tuple[Outcome, str | None]:
    if plan.end is End.RESET:
        return Outcome.RESET, "connection reset (simulated)"
    if plan.end is End.ERROR:
        return Outcome.ERROR_IN_STREAM, ERROR_MESSAGE
    if plan.end is End.TRUNCATED:
        return Outcome.TRUNCATED, "the stream ended without a finish reason (simulated)"
    if plan.n_tokens == 0:
        return Outcome.EMPTY_STREAM, "no token was generated (simulated)"
    if behaviour.not_streaming or any(piece.garbage for piece in plan.pieces):
        return Outcome.BAD_RESPONSE, "not a stream of JSON events (simulated)"
    return Outcome.OK, None


def _emission(piece: Piece, now_ns: int) -> Emission:
    tokens = piece.n_tokens if piece.kind in GENERATED else None
    return Emission(now_ns, piece.kind, piece.text, tokens)


def _refusal(status: Status, received_ns: int) -> Result:
    return Result(
        outcome=Outcome.REFUSED if status.code in (429, 503) else Outcome.HTTP_ERROR,
        end_ns=received_ns,
        connected_ns=received_ns,
        sent_ns=received_ns,
        status=status.code,
        error=f"status {status.code} (simulated)",
        retry_after_s=status.retry_after_s,
    )


def _ask(request: Request, behaviour: Behaviour) -> Ask:
    tokens = len(request.token_ids) if request.token_ids is not None else len((request.prompt or "").encode())
    chat = behaviour.role_first is True or behaviour.reasoning is not None
    return Ask(tokens, request.max_tokens, chat=chat, include_usage=True)


def _refuse_bytes(behaviour: Behaviour) -> None:
    without_meaning = [name for name in asked(behaviour) if name in BYTES_ONLY]
    if without_meaning:
        raise InputError(
            "x_simulate",
            ", ".join(without_meaning),
            "acts on bytes, and an engine in process has none; use simulate",
        )


def _sleeper(clock: Clock) -> SleepUntil:
    async def sleep_until(t_ns: int) -> None:
        left_ns = t_ns - clock.now_ns()
        while left_ns > 0:  # a loop's timer may end a rounding error early
            await asyncio.sleep(left_ns / 1e9)
            left_ns = t_ns - clock.now_ns()

    return sleep_until
