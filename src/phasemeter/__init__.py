"""Phasemeter: where the time of an LLM request goes, why, and what makes it faster."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("phasemeter")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
