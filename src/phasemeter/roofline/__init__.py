"""Roofline arithmetic: what a model's forward pass needs, what a machine can do, and the least time that
follows.

Pure functions, no I/O beyond the package's own tables: `work` turns (model, batch) into FLOPs and bytes,
`floor` turns (work, hardware) into seconds.
"""

from __future__ import annotations
