"""Lines are those of vLLM 0.32 (a CPU run of each failure) and 0.26, shortened and without machine paths."""

from __future__ import annotations

import signal

import pytest

from phasemeter.engines.vllm_reasons import reason_of
from phasemeter.launch.child import Death

BOTTOM = [
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("main.py: error: unrecognized arguments: --bogus-flag 3", ["--bogus-flag 3"]),
        (
            "main.py serve: error: argument --max-num-seqs: invalid int value: 'many'",
            ["--max-num-seqs", "invalid int value"],
        ),
        ("OSError: [Errno 98] Address already in use", ["port is taken"]),
        (
            "  Value error, OpenTelemetry is not available. Unable to configure 'otlp_traces_endpoint'. Ensure "
            "OpenTelemetry packages are installed. Original error:",
            ["opentelemetry-sdk", "opentelemetry-exporter-otlp", "--engine-spans"],
        ),
        (
            "ValueError: OpenTelemetry is not available. Unable to initialize a tracer. Ensure OpenTelemetry "
            "packages are installed. Original error:",
            ["opentelemetry-sdk", "leave --engine-spans"],
        ),
        (
            "(APIServer pid=9) ERROR 12-01 03:44:43 [async_llm.py:906] AttributeError: type object 'Any' has no "
            "attribute 'SERVER'",
            ["lacks the packages", "opentelemetry-exporter-otlp"],
        ),
        (
            "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported "
            "architectures: dict_keys(['AfmoeForCausalLM'])",
            ["does not know the model's architecture ['FooForCausalLM']"],
        ),
        (
            "  Value error, The checkpoint you are trying to load has model type `foo_model` but Transformers does "
            "not recognize this architecture.",
            ["model type foo_model"],
        ),
        (
            "  Value error, User-specified max_model_len (200000) is greater than the derived max_model_len "
            "(max_position_embeddings=131072.0 or model_max_length=None in model's config.json).",
            ["--max-model-len 200000", "131072"],
        ),
        (
            "(EngineCore pid=9) ValueError: To serve at least one request with the models's max seq len (131072), "
            "(4.5 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).",
            ["KV cache is too small", "4.5 GiB needed", "1.0 GiB there"],
        ),
        (
            "(EngineCore pid=9) ValueError: No available memory for the cache blocks. Try increasing it.",
            ["no memory is left for the KV cache"],
        ),
        (
            "(EngineCore pid=9) ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 125.82 GiB). Decrease it.",
            ["cuda:0 (3.1/139.8 GiB)", "(0.9, 125.82 GiB)"],
        ),
        ("(EngineCore pid=9) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", ["GPU ran out"]),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", ["machine ran out"]),
        ("RuntimeError: Failed to infer device type, please set the environment variable", ["no GPU"]),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo'",
            ["model was not found"],
        ),
        (
            "(EngineCore pid=9) ERROR 12-01 01:32:24 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
            "unexpectedly (exit code: None), shutting down executor.",
            ["its worker process VllmWorker-0 ended"],
        ),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for vllm", ["distribution name"]),
        ("(EngineCore pid=9) ValueError: an error that no rule knows", ["ValueError: an error that no rule knows"]),
    ],
)  # fmt: skip
def test_each_failure_has_its_words(line, words):
    why = reason_of(Death(1), ["INFO 12-01 00:50:05 [a.py:1] fine", line, *BOTTOM])
    assert all(word in why for word in words), why


def test_a_signal_is_named_when_the_log_says_nothing():
    assert "want of memory" in reason_of(Death(-signal.SIGKILL), ["INFO fine"])
    assert "illegal instruction" in reason_of(Death(-signal.SIGILL), [])
    assert reason_of(Death(-signal.SIGUSR1), []) == "it was killed by SIGUSR1"


def test_what_the_log_says_beats_the_exit_code():
    assert "GPU ran out" in reason_of(Death(-signal.SIGKILL), ["torch.OutOfMemoryError: CUDA out of memory."])


def test_a_dead_engine_process_is_named_only_when_nothing_better_is_known():
    dead = (
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
    )
    assert reason_of(Death(0), [dead]) == "its engine process broke"
    assert (
        reason_of(Death(0), ["ZeroDivisionError: division by zero", dead])
        == "ZeroDivisionError: division by zero"
    )


def test_nothing_to_be_found():
    assert reason_of(Death(7), ["INFO fine"]) == "it ended with exit code 7"
    assert reason_of(None, []) == "no reason is to be found in its log"
