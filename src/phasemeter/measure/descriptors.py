"""File descriptors: one for each connection. The system's soft limit is often 1024 although more are allowed."""

from __future__ import annotations

import sys

from phasemeter.record.errors import InputError

BESIDE_CONNECTIONS = 64
"""What a process has open otherwise: the run file, libraries, the loop's own, a scrape."""


def allow_connections(most: int | None) -> None:
    """Raise this process's soft limit for `most` connections at once (None: nobody knows how many; as far as it goes).
    Raises InputError with the number needed when the hard limit does not allow it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    needed = None if most is None else most + BESIDE_CONNECTIONS
    if soft == endless or (needed is not None and needed <= soft):
        return
    if needed is not None and hard != endless and needed > hard:
        raise InputError(
            "--concurrency",
            str(most),
            f"needs {needed} file descriptors and the system allows this process {hard}; raise the hard limit "
            f"(ulimit -Hn {needed}) or lower the concurrency",
        )
    wanted = needed if needed is not None else (hard if hard != endless else _PLENTY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def told_of_descriptors(error: str | None) -> bool:
    """Whether a failed connection was for want of a descriptor: our own limit, not the server's fault."""
    return error is not None and "Too many open files" in error


def no_descriptor_left(in_flight: int | None) -> InputError:
    """What to say then."""
    return InputError(
        "file descriptors",
        f"none left with {in_flight} requests in flight",
        "every connection needs one; raise the hard limit (ulimit -Hn) or lower the load",
    )


_PLENTY = 1 << 20
