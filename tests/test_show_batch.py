"""`python -m bert_jax.show_batch` shows the rows of a training step."""

import numpy as np
from rich.console import Console

from bert_jax import config as config_lib
from bert_jax import show_batch
from bert_jax.commands.open_input import open_run_input
from bert_jax.pretraining.input import stream_spec
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer
from bert_jax.training.stages import resolve_stages
from tests.small_run import small_run, write_documents


def test_a_row_shows_segments_and_what_is_predicted():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"word{i}" for i in range(5, 14)] + [f"##part{i}" for i in range(14, 20)]
    tokenizer = WordPieceTokenizer(words, lowercase=True, max_input_chars_per_word=100)
    cls, sep, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    batch = {
        "input_ids": np.array([[cls, 10, mask, 12, sep, 13, 14, sep, 0, 0]]),
        "token_type_ids": np.array([[0, 0, 0, 0, 0, 1, 1, 1, 0, 0]]),
        "attention_mask": np.array([[1] * 8 + [0] * 2]),
        # Masked, kept, and random; the last entry has no weight.
        "masked_lm_positions": np.array([[2, 3, 6, 0]]),
        "masked_lm_ids": np.array([[11, 12, 15, 0]]),
        "masked_lm_weights": np.array([[1.0, 1.0, 1.0, 0.0]]),
        "next_sentence_labels": np.array([1]),
    }
    t = tokenizer.tokens
    first, second = show_batch.row_lines(batch, 0, tokenizer)
    assert first.plain.split() == ["segment", "0", t[cls], t[10], f"{t[11]}→{t[mask]}"] + [
        f"{t[12]}→{t[12]}",
        t[sep],
    ]
    assert second.plain.split() == ["segment", "1", f"{t[13]}·{t[15]}→{t[14]}", t[sep]]
    styles = {first.plain[s.start : s.end]: s.style for s in first.spans}
    assert styles[f"{t[11]}→{t[mask]}"] == show_batch.STYLES["masked"]
    assert styles[f"{t[12]}→{t[12]}"] == show_batch.STYLES["kept"]

    console = Console(width=100, record=True)
    console.print(show_batch.batch_table(batch, tokenizer))
    rows = [line.strip("│ ").split("│") for line in console.export_text().splitlines()]
    fractions = {row[0].strip(): row[-1].strip() for row in rows if len(row) == 2}
    assert fractions["padding"] == "20.0%" and fractions["predicted tokens"] == "37.5%"
    assert [fractions[kind] for kind in show_batch.STYLES] == ["33.3%"] * 3
    assert fractions["next_sentence_labels 1"] == "100.0%"


def test_pairs_that_share_a_row_are_shown_one_by_one(tmp_path, capsys):
    texts = write_documents(tmp_path / "texts", 12)
    values = {"data.max_pairs_per_row": 4, "data.short_seq_prob": 0.9}
    config = small_run(texts, **values)
    with config.unlocked():
        config.train.stages = (config_lib.stage(fraction=1.0, max_seq_length=64),)
    batch, first_example, tokenizer = show_batch.read_batch(config, 1)
    row = int(batch["attention_mask"].max(axis=1).argmax())
    pairs = batch["attention_mask"][row].max()
    assert pairs > 1
    lines = [line.plain for line in show_batch.row_lines(batch, row, tokenizer)]
    assert len(lines) == 2 * pairs
    for number in range(1, pairs + 1):
        first, second = lines[2 * number - 2 : 2 * number]
        assert first.startswith(f"  segment 0 of pair {number}")
        assert second.startswith(f"  segment 1 of pair {number}")
    show_batch._print_rows(batch, first_example, 4, tokenizer)
    labels = batch["next_sentence_labels"][0, : batch["attention_mask"][0].max()]
    tokens = (batch["attention_mask"][0] > 0).sum()
    shown = " ".join(map(str, labels))
    assert f"example 0: {tokens} tokens, next_sentence_labels {shown}" in capsys.readouterr().out


def test_the_batch_is_that_of_the_training_step(tmp_path):
    texts = write_documents(tmp_path / "texts", 12)
    config = small_run(texts, train__num_steps=9)
    with config.unlocked():
        config.train.stages = tuple(
            config_lib.stage(fraction=0.5, max_seq_length=length, max_predictions_per_seq=4)
            for length in (16, 24)
        )
    stage = resolve_stages(config)[1]
    step = stage.first_step + 3
    batch, first, _ = show_batch.read_batch(config, step, str(tmp_path / "run"))
    run_input = open_run_input(config, tmp_path / "run")
    stream = run_input.stream(stream_spec(config, stage))
    *_, expected = stream.batches(0, 3)
    assert batch["input_ids"].shape == (4, 24) and first == 8
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name], value)
