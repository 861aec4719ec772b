"""Audit: is a number or a sentence about inference time possible, by arithmetic alone?

`read.py` turns a file into `claims.py`'s types, `place.py` looks up model, hardware and host bounds,
`judge.py` gives every claim a verdict with its working. Nothing is measured; what the tables cannot decide is called
undecidable.
"""

from __future__ import annotations
