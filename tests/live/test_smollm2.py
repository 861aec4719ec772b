"""A real model, end to end: SmolLM2-135M-Instruct from its GGUF file through the local engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.engines.transformers_local import LocalOptions, TransformersLocal
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell, Request, Sampling

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    folder = Path(__file__).resolve().parents[2] / "models" / "smollm2"
    files = sorted(folder.glob("*.gguf"))
    if not files:
        pytest.skip("no models/smollm2/*.gguf; `make live` fetches it")
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    return files[0]


async def test_it_answers_a_plain_question_and_its_phases_add_up(
    smollm2: Path, capfd: pytest.CaptureFixture[str]
):
    engine = TransformersLocal(LocalOptions(model=str(smollm2), api="chat"))
    await engine.start()
    question = Request(
        id="q",
        cell=Cell(input_tokens=37, output_tokens=32),
        max_tokens=32,
        prompt="What is the capital of France?",
        sampling=Sampling(ignore_eos=False),
    )
    result = (await engine.generate(question)).settle()
    info = engine.info
    await engine.close()

    text = "".join(e.text for e in result.emissions)
    assert "Paris" in text
    assert "<|im_end|>" not in text
    assert result.outcome is Outcome.OK
    assert result.finish_reason == "stop"
    assert info.weights == "checkpoint"
    assert info.vocab_tokens == 49152
    assert info.max_context_tokens == 8192

    stamps = [e.recv_ns for e in result.emissions]
    report, usage = result.report, result.usage
    assert report is not None
    assert usage is not None
    assert usage.prompt_tokens is not None
    assert usage.prompt_tokens > 20  # the template's own tokens are counted
    assert usage.completion_tokens == report.n_tokens == len(stamps)
    assert stamps == sorted(stamps)
    assert report.decode_ns == stamps[-1] - stamps[0]
    assert report.queue_ns is not None
    assert report.prefill_ns is not None
    assert result.sent_ns is not None
    assert stamps[0] - result.sent_ns - report.queue_ns - report.prefill_ns >= 0
    # Nothing of the libraries' own chatter reaches the user.
    assert capfd.readouterr().err == ""
