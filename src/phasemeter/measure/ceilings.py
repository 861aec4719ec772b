# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What this machine can really do: memory bandwidth, matrix rate per number format, cost of starting one
operator.

Each rate is the best of several repeats of the best of several kernels: a ceiling, not an average. Buffers
are far larger than any last-level cache (the size class of a small model's weights) and hold random numbers,
since zeros draw less power and some devices compress them. PyTorch measures where it is installed, else NumPy
does on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from phasemeter.engines.cpu import usable_cores
from phasemeter.measure.environment import cpu_name, memory_bytes
from phasemeter.record.clock import Clock
from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import canonical_dtype
from phasemeter.roofline.hardware import Ceilings

if TYPE_CHECKING:
    import torch

_CPU_BUFFER_BYTES = 1 << 30
_GPU_BUFFER_BYTES = 4 << 30
_BLOCK = 1 << 22
_MOST_REPEATS = 50
# (m, k, n) of y = x W^T: a big square, and the skinny shapes of a small model's prefill, on which CPUs do
# best.
_CPU_SHAPES = ((512, 1024, 3072), (1024, 2048, 2048), (2048, 2048, 2048))
_GPU_SHAPES = ((2048, 4096, 14336), (8192, 8192, 8192), (4096, 8192, 8192))
_LAUNCHES = 2000

_Timer = Callable[[Callable[[], object], float], float]


def measure_ceilings(
    device: str, dtypes: Sequence[str], clock: Clock, budget_s: float = 3.0, threads: int | None = None
) -> Ceilings:
    """Measure `device` ("auto", "cpu", "cuda", "cuda:N") for about `budget_s` seconds (preparing buffers
    comes on top).

    `dtypes` are the formats whose matrix rate is wanted; those that the device or library cannot multiply are
    left out. Raises InputError for an unknown format or a device that is not there.
    """
    wanted = tuple(dict.fromkeys(canonical_dtype(name) for name in dtypes))
    if budget_s <= 0:
        raise InputError("budget_s", budget_s, "give a positive number of seconds")
    try:
        import torch
    except ImportError:
        return _by_numpy(device, wanted, clock, budget_s)
    from phasemeter.engines.local_weights import resolve_device

    place = resolve_device(device)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or usable_cores())
    try:
        with torch.inference_mode():
            return _by_torch(place, wanted, clock, budget_s)
    finally:
        torch.set_num_threads(before)


def _by_torch(device: torch.device, dtypes: tuple[str, ...], clock: Clock, budget_s: float) -> Ceilings:
    import torch

    gpu = device.type == "cuda"
    wait: Callable[[], None] = (lambda: torch.cuda.synchronize(device)) if gpu else (lambda: None)
    timer = _best_timer(clock, wait)
    size = _buffer_bytes(device)
    source = _random_buffer(size // 4, device)
    read = size / min(timer(kernel, 0.15 * budget_s / 3) for kernel in _readers(source))
    target = torch.empty_like(source)
    copy = 2 * size / timer(_copier(target, source), 0.15 * budget_s)
    del target, source
    shapes = _GPU_SHAPES if gpu else _CPU_SHAPES
    share = 0.6 * budget_s / max(1, len(dtypes) * len(shapes))
    rates = {name: _matrix_rate(name, device, shapes, timer, share) for name in dtypes}
    shown = ", ".join("x".join(map(str, shape)) for shape in shapes)
    return Ceilings(
        device=torch.cuda.get_device_name(device) if gpu else f"CPU {cpu_name()}",
        method=(
            f"torch {torch.__version__}: best of dot, sum and max over {size >> 20} MiB; copy of the same "
            f"(read + write); best linear layer of {shown}; {_LAUNCHES} tiny in-place additions"
        ),
        read_bandwidth_bytes_per_s=read,
        copy_bandwidth_bytes_per_s=copy,
        gemm_flops_per_s={name: rate for name, rate in rates.items() if rate is not None},
        launch_ns=_launch_ns(device, clock, wait),
        threads=None if gpu else torch.get_num_threads(),
    )


def _readers(source: torch.Tensor) -> Iterable[Callable[[], object]]:
    """Kernels that read every byte once and write next to nothing; which is quickest differs by device."""
    import torch

    half = source.view(torch.float16)
    return (lambda: torch.dot(source, source), lambda: half.sum(), lambda: source.amax())


def _copier(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source)


def _random_buffer(n: int, device: torch.device) -> torch.Tensor:
    """`n` float32 numbers; one random block repeated, since drawing a gigabyte takes longer than
    measuring."""
    import torch

    block = torch.randn(_BLOCK, device=device, generator=torch.Generator(device).manual_seed(0))
    return block.repeat(-(-n // _BLOCK))[:n]


def _matrix_rate(
    name: str, device: torch.device, shapes: Sequence[tuple[int, int, int]], timer: _Timer, share_s: float
) -> float | None:
    """FLOP/s of y = x W^T in one format, best over the shapes; None where torch cannot multiply it here.

    A format that runs at a crawl (float16 on most CPUs) is stopped after the first shape over its share of
    time.
    """
    import torch

    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        return None
    best: float | None = None
    for m, k, n in shapes:
        try:
            x = _random_buffer(m * k, device).view(m, k).to(kind)
            weight = _random_buffer(n * k, device).view(n, k).to(kind)
            took_s = timer(_linear(x, weight), share_s)
        except RuntimeError:
            return best
        rate = 2 * m * k * n / took_s
        best = rate if best is None else max(best, rate)
        if took_s > share_s:
            break
    return best


def _linear(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    import torch

    return lambda: torch.nn.functional.linear(x, weight)


def _launch_ns(device: torch.device, clock: Clock, wait: Callable[[], None]) -> float:
    """Time of one operator that does next to nothing, in a loop: dispatch on a CPU, launch rate on a GPU.
    Best of 3."""
    import torch

    cell = torch.zeros(1, device=device)
    best = float("inf")
    for _ in range(3):
        wait()
        start_ns = clock.now_ns()
        for _ in range(_LAUNCHES):
            cell.add_(1)
        wait()
        best = min(best, (clock.now_ns() - start_ns) / _LAUNCHES)
    return best


def _best_timer(clock: Clock, wait: Callable[[], None]) -> _Timer:
    """A function that times a kernel: one call that does not count, then repeats until its share of time is
    over; the best, in seconds."""

    def once_ns(kernel: Callable[[], object]) -> int:
        start_ns = clock.now_ns()
        kernel()
        wait()
        return max(1, clock.now_ns() - start_ns)

    def best_s(kernel: Callable[[], object], share_s: float) -> float:
        spent_ns = once_ns(kernel)
        best_ns = once_ns(kernel)
        spent_ns += best_ns
        for _ in range(_MOST_REPEATS):
            if spent_ns > share_s * 1e9:
                break
            took_ns = once_ns(kernel)
            best_ns = min(best_ns, took_ns)
            spent_ns += took_ns
        return best_ns / 1e9

    return best_s


def _buffer_bytes(device: torch.device) -> int:
    """A buffer that no cache holds; at most an eighth of the memory, since a copy needs two and others need
    some."""
    if device.type == "cuda":
        import torch

        most, free = _GPU_BUFFER_BYTES, torch.cuda.mem_get_info(device)[0]
    else:
        most, free = _CPU_BUFFER_BYTES, memory_bytes() or 8 * _CPU_BUFFER_BYTES
    block = 4 * _BLOCK
    return max(block, min(most, free // 8) // block * block)


def _by_numpy(device: str, dtypes: tuple[str, ...], clock: Clock, budget_s: float) -> Ceilings:
    """CPU only, float32 only: NumPy has no bfloat16 and multiplies float16 without the machine's units."""
    import numpy as np

    if device not in ("auto", "cpu"):
        raise InputError(
            "--device", device, "without torch only the CPU can be measured; install phasemeter[local]"
        )
    timer = _best_timer(clock, lambda: None)
    blocks = min(_CPU_BUFFER_BYTES, (memory_bytes() or 8 * _CPU_BUFFER_BYTES) // 8) // (4 * _BLOCK)
    draw = np.random.default_rng(0)
    source = np.tile(draw.standard_normal(_BLOCK, dtype=np.float32), max(1, blocks))
    readers: tuple[Callable[[], Any], ...] = (lambda: np.dot(source, source), lambda: source.max())
    read = source.nbytes / min(timer(kernel, 0.15 * budget_s / 2) for kernel in readers)
    target = np.empty_like(source)
    copy = 2 * source.nbytes / timer(lambda: np.copyto(target, source), 0.15 * budget_s)
    gemm: dict[str, float] = {}
    if "float32" in dtypes:
        side = 2048
        a, b = (draw.standard_normal((side, side), dtype=np.float32) for _ in range(2))
        gemm["float32"] = 2 * side**3 / timer(lambda: a @ b, 0.6 * budget_s)
    return Ceilings(
        device=f"CPU {cpu_name()}",
        method=(
            f"numpy {np.__version__}: best of dot and max over {source.nbytes >> 20} MiB (one thread each: "
            "the machine's bandwidth may be higher); copy of the same; 2048x2048 matrix product"
        ),
        read_bandwidth_bytes_per_s=read,
        copy_bandwidth_bytes_per_s=copy,
        gemm_flops_per_s=gemm,
        threads=usable_cores(),
    )
