from __future__ import annotations

import json

import pytest

from phasemeter.engines.byte_tokenizer import ByteTokenizer
from phasemeter.engines.vllm_model import tokenizer, write_model
from phasemeter.record.errors import InputError


def test_the_tokenizer_agrees_with_our_own():
    tokenizers = pytest.importorskip("tokenizers")
    theirs, ours = tokenizers.Tokenizer.from_str(json.dumps(tokenizer(2048))), ByteTokenizer()
    for text in ("hello", "a b\n\t", "héllo ❤ 你好", "".join(map(chr, range(1, 300)))):
        ids = theirs.encode(text).ids
        assert ids == ours.encode(text)
        assert theirs.decode(ids) == text
    assert theirs.get_vocab_size() == 2048
    assert theirs.decode([104, 105, 2047, 300]) == "hi⟨2047⟩⟨300⟩" == ours.decode([104, 105, 2047, 300])


def test_a_config_without_a_vocabulary_is_refused(tmp_path):
    with pytest.raises(InputError, match="vocab_size"):
        write_model(tmp_path, {"model_type": "llama"})
