from __future__ import annotations

import pytest

from phasemeter.engines.vllm_flags import check_known, given, name_of, value_of
from phasemeter.record.errors import InputError

KNOWN = frozenset(
    {"--max-num-seqs", "--max-num-batched-tokens", "--compilation-config", "-cc", "-O", "-tp",
     "--tensor-parallel-size", "--enforce-eager", "--no-enforce-eager", "--port"}
)  # fmt: skip


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-num-seqs", "8"],
        ["--max_num_seqs=8"],
        ["--compilation-config.cudagraph_mode", "NONE"],
        ["-O3", "-tp", "2", "-cc.mode=0"],
        ["--enforce-eager", "--no-enforce-eager"],
        ["--max-num-seqs", "-1"],
        [],
    ],
)
def test_what_vllm_takes_is_taken(flags):
    check_known(flags, KNOWN, "0.32.0")


def test_what_it_does_not_is_told_with_near_names():
    with pytest.raises(InputError, match=r"--max-num-seq-s=8.*0\.32\.0.*did you mean --max-num-seqs"):
        check_known(["--max-num-seq-s=8"], KNOWN, "0.32.0")
    with pytest.raises(InputError, match="--max-num: .*no such flag"):
        check_known(["--max-num", "8"], KNOWN, "0.32.0")  # fits two flags
    with pytest.raises(InputError, match="see `vllm serve --help=all`"):
        check_known(["--zzzz"], KNOWN, None)


def test_a_shortened_flag_is_refused_since_nobody_would_know_it_again():
    with pytest.raises(InputError, match=r"--enforce: write it out.*--enforce-eager"):
        check_known(["--enforce"], KNOWN, "0.32.0")


def test_values_are_no_flags():
    assert [name_of(word) for word in ("8", "-1", "-0.5", "-", "x=--y", "--a_b.c=d", "-tp")] == [
        None, None, None, None, None, "--a-b", "-tp",
    ]  # fmt: skip


def test_what_the_user_gave():
    flags = ["--port", "1", "--enforce_eager", "--port=2", "--max-num-seqs"]
    assert value_of(flags, "--port") == "2"
    assert value_of(flags, "--max-num-seqs") is None
    assert value_of(flags, "--enforce-eager") is None
    assert given(flags, "--enforce-eager")
    assert not given(flags, "--no-enforce-eager", "1")
