"""What went on beside the requests, as lines over the time of the run: server, GPU, client."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.report.inside import TextTable


class Series(Struct, frozen=True):
    """One line of a panel: seconds since the first arrival, and values in the panel's unit. `steps`: it holds its value
    until the next point."""

    label: str
    colour: str
    t_s: tuple[float, ...]
    values: tuple[float, ...]
    steps: bool = False


class Panel(Struct, frozen=True):
    """Lines that share an axis; `axis` is its title with the unit."""

    axis: str
    series: tuple[Series, ...]


class BesideView(Struct, frozen=True):
    """Panels over one time axis, and the same lines as a table of means and extremes."""

    panels: tuple[Panel, ...]
    table: TextTable
    alt: str
    note: str
