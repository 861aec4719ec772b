"""Read the run that a command was given, or what a kill left of one that several processes sent."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from phasemeter.record.file import RunWriter, read_run
from phasemeter.record.parts import part_header, parts_in, write_joined
from phasemeter.record.run import Run


def read_given(path: Path) -> Run:
    """As `read_run`; a folder of parts (`RUN.jsonl.parts`), or the name of a run that is there as such a folder alone,
    is read as the one run that they are. It has no footer then: it was killed. Raises InputError."""
    folder = path if path.is_dir() else path.with_name(f"{path.name}.parts")
    parts = parts_in(folder) if folder == path or not path.exists() else []
    if not parts:
        return read_run(path)
    with TemporaryDirectory(prefix="phasemeter-") as name:
        joined = Path(name) / folder.name.removesuffix(".parts")
        with RunWriter(joined, part_header(parts[0])) as writer:
            write_joined(writer, parts)
        return read_run(joined)
