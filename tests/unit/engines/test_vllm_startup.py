from __future__ import annotations

from phasemeter.engines.vllm_startup import LogReader

# vLLM 0.32 on a CPU, as it printed it; the seconds are when each line was read
CPU_032 = [
    (9.0, "(APIServer pid=1) INFO 12-01 00:49:29 [api_utils.py:347]  version 0.32.0"),
    (32.0, "(EngineCore pid=2) INFO 12-01 00:49:52 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
           "model='m', speculative_config=None, dtype=torch.float32, max_seq_len=131072, load_format=dummy, "
           "enforce_eager=False, device_config=cpu, quantization=None"),
    (46.0, "(Worker pid=3) INFO 12-01 00:50:06 [base_loader.py:82] Initializing model took 0.420415 seconds"),
    (47.0, "(Worker pid=3) INFO 12-01 00:50:07 [cpu_model_runner.py:87] Warming up model for the compilation..."),
    (94.0, "(Worker pid=3) INFO 12-01 00:50:54 [monitor.py:91] [backbone] Initial profiling/warmup run took 0.18 s"),
    (95.0, "(Worker pid=3) INFO 12-01 00:50:55 [cpu_model_runner.py:91] Warming up done."),
    (95.0, "(EngineCore pid=2) INFO 12-01 00:50:55 [kv_cache_utils.py:2327] CPU KV cache size: 262,144 tokens, Max"),
    (96.0, "(EngineCore pid=2) INFO 12-01 00:50:56 [core.py:402] init engine (profile, create kv cache, warmup model) "
           "took 48.39 s"),
]  # fmt: skip

# the lines of the GPU builds around 0.26: two workers, compilation and capture told
GPU_026 = [
    (12.0, "(APIServer pid=1) INFO 06-02 00:51:00 [utils.py:1] non-default args"),
    (20.0, "(EngineCore pid=2) INFO 06-02 00:51:20 [core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: "
           "model='m', dtype=torch.bfloat16, load_format=auto, enforce_eager=False, device_config=cuda, seed=0"),
    (21.0, "(Worker pid=3) INFO 06-02 00:51:21 [cuda.py:371] Using FLASH_ATTN attention backend out of potential ones"),
    (46.0, "(Worker pid=3) INFO 06-02 00:51:39 [default_loader.py:397] Loading weights took 26.93 seconds"),
    (47.0, "(Worker pid=3) INFO 06-02 00:51:40 [gpu_model_runner.py:4879] Model loading took 7.64 GiB memory and "
           "32.969258 seconds"),
    (48.0, "(Worker pid=4) INFO 06-02 00:51:41 [gpu_model_runner.py:4879] Model loading took 7.6 GiB and 31.0 seconds"),
    (60.0, "(Worker pid=3) INFO 06-02 00:51:53 [monitor.py:48] torch.compile took 8.52 s in total"),
    (61.0, "(Worker pid=3) INFO 06-02 00:51:54 [monitor.py:76] Initial profiling/warmup run took 0.11 s"),
    (66.0, "(Worker pid=3) INFO 06-02 00:51:59 [gpu_model_runner.py:5820] Graph capturing finished in 5 secs, took 0.7 "
           "GiB"),
    (67.0, "(EngineCore pid=2) INFO 06-02 00:52:00 [core.py:340] init engine (profile, create kv cache, warmup model) "
           "took 19.04 s (compilation: 8.52 s)"),
]  # fmt: skip


def read(lines: list[tuple[float, str]]) -> LogReader:
    reader = LogReader()
    for at_s, text in lines:
        reader.line(text, at_s)
    reader.ready(lines[-1][0] + 2)
    return reader


def test_a_cpu_start_of_032():
    reader = read(CPU_032)
    assert reader.startup.told() == {
        "import_s": "9.00", "load_s": "0.42", "warmup_s": "48.00", "engine_s": "48.39", "first_token_s": "98.00",
    }  # fmt: skip
    assert reader.facts == {
        "dtype": "float32", "device": "cpu", "load_format": "dummy", "enforce_eager": "False",
        "kv_cache_tokens": "262144",
    }  # fmt: skip


def test_a_gpu_start_of_026():
    reader = read(GPU_026)
    assert reader.startup.told() == {
        "import_s": "12.00", "load_s": "32.97", "weights_s": "26.93", "compile_s": "8.52", "capture_s": "5.00",
        "warmup_s": "0.11", "engine_s": "19.04", "first_token_s": "69.00",
    }  # fmt: skip
    assert reader.facts["attention"] == "FLASH_ATTN"
    assert (reader.facts["dtype"], reader.facts["device"]) == ("bfloat16", "cuda")


def test_what_is_not_told_is_absent():
    assert LogReader().startup.told() == {}
