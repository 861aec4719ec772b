"""A server with several engine cores: each line of our plugin says which core it speaks of."""

from __future__ import annotations

from unit.engines.test_vllm_stat_logger import SchedulerStats, lines, plugin

__all__ = ["plugin"]  # the fixture


def test_the_engines_index_is_told_however_it_is_handed_over(plugin, tmp_path, monkeypatch):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    monkeypatch.setenv("PHASEMETER_VLLM_STEPS", "1")
    logger = plugin.PhasemeterStatLogger(vllm_config=None, engine_index=3)
    logger.record(SchedulerStats(), None, None, 2)
    logger.record(scheduler_stats=SchedulerStats(), iteration_stats=None, engine_idx=4)
    logger.record(SchedulerStats(), None)
    assert [one["engine_index"] for one in lines(file)] == [3, 2, 4, 3]
