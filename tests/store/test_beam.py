"""Preparation by Apache Beam in one process; test_killed_engines.py has several."""

import json

import pytest

from bert_jax.base.errors import UserError
from bert_jax.store.engines import beam_runner
from bert_jax.store.preparation import prepare
from tests.stores import VOCAB_SIZE, digest, make, options, parts_of, write_speeches


def test_the_same_bytes_and_errors(tmp_path):
    pytest.importorskip("apache_beam")
    data = options(write_speeches(tmp_path / "texts", 40))
    runner = beam_runner("FnApiRunner", [])
    with parts_of(8000):
        make(data, tmp_path / "local")
        metadata = prepare(data, VOCAB_SIZE, tmp_path / "beam", engine=runner)
    assert metadata["format_version"] == 2
    assert digest(tmp_path / "beam") == digest(tmp_path / "local")
    lines = [json.dumps({"text": f"It is {n}."}) if n % 30 else "broken" for n in range(1, 90)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = options(tmp_path / "a.jsonl")
    with parts_of(200), pytest.raises(UserError, match="a.jsonl:30: not a JSON object"):
        prepare(data, VOCAB_SIZE, tmp_path / "bad", engine=runner)
