from __future__ import annotations

from phasemeter.cli.crew import sending_spec
from phasemeter.engines.spec import EngineSpec
from phasemeter.record.engine import EngineInfo
from phasemeter.record.scrape import MetricsPlace


class Started:
    """A server that was started on a folder: it serves the model under the folder's name."""

    info = EngineInfo(kind="vllm", model="tiny", takes_token_ids=True)

    def metrics_place(self):
        return MetricsPlace(url="http://127.0.0.1:8123/metrics")


def test_workers_ask_a_started_server_for_the_name_that_it_serves():
    spec = EngineSpec(kind="vllm", model="./models/tiny", engine_flags=("--enforce-eager",))
    told = sending_spec(spec, Started())
    assert (told.model, told.url) == ("tiny", "http://127.0.0.1:8123")
    assert told.engine_flags == ()
