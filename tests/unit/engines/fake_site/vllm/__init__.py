"""Stands in for vLLM in the tests of `vllm_server`: its flags, its log, its HTTP API, its ways to die."""
