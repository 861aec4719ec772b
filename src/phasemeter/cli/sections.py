"""Help of a command with many options, in sections."""

from __future__ import annotations

import click

SECTIONS = (
    (
        "What is measured",
        """engine model url api api_key_env dtype device threads insecure truth hardware model_shape temperature top_p
        top_k scrape_s""",
    ),
    ("vLLM", "engine_python engine_steps engine_spans engine_plugin"),
    (
        "A grid of shapes, or a closed loop",
        "input_tokens output_tokens concurrency repeats requests paired seed warmup think_s stagger_s",
    ),
    (
        "A load",
        """workload tokenizer rate arrivals duration trace trace_scale trace_window late_limit_ms find between slo
        workers on""",
    ),
    (
        "When the client gives a request up",
        """timeout_s connect_timeout_s first_token_timeout_s gap_timeout_s cancel_ratio cancel_after_tokens""",
    ),
)
"""Title, and the parameters in it; what stands in no section comes last."""


class SectionedCommand(click.Command):
    """A command whose help lists its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section for each group of options; the rest comes last."""
        rows = {
            param.name: row
            for param in self.get_params(ctx)
            if (row := param.get_help_record(ctx)) is not None
        }
        for title, names in SECTIONS:
            mine = [rows.pop(name) for name in names.split() if name in rows]
            if mine:
                with formatter.section(title):
                    formatter.write_dl(mine)
        with formatter.section("Options"):
            formatter.write_dl(list(rows.values()))
