"""A model is trained on prompts with answers, which it then writes."""

import json

import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.commands.pretrain import pretrain
from bert_jax.convert import convert
from bert_jax.show_batch import batch_table, read_batch, row_lines
from configs import diffusion
from tests.small_run import small_run

COLORS = ("red", "blue", "green", "white")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {"prompt": f"What color has number {n}? Say it.", "answer": f"It is {COLORS[n % 4]}."}
        for n in range(80)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config_of(pairs, **changes):
    values = {"data.rows": "answers", "data.max_pairs_per_row": 1, "train.num_steps": 2}
    values |= {"data.text_field": "prompt,answer", "data.heldout_fraction": 0.1}
    config = small_run(pairs, diffusion.get_config("tiny"), **values | changes)
    config.train.stages[0].max_seq_length = 40
    return config


def test_answers_are_trained_written_and_exported(pairs, tmp_path):
    config = config_of(pairs)
    results = pretrain(config, tmp_path / "run")
    # The baseline knows that most targets are the separators that fill the rows.
    assert results["unigram_diffusion_loss"] < 3 < results["diffusion_loss"]
    assert results["unigram_diffusion_accuracy"] > 0.5
    assert results["diffusion_standard_error"] > 0 and results["num_sequences"] == 8
    # The page shows how the model writes the answer of a held-out row.
    (shown,) = results["filled_texts"]
    prompts = [text.partition("it.")[0] for text in (*shown["texts"], shown["original"])]
    assert len(prompts) == 10 and {*prompts} == {prompts[0]} and "_" not in prompts[0]
    numbers = [text.count("_") for text in shown["texts"]]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > 8 and numbers[-1] == 0
    batch, _, tokenizer = read_batch(config, 1, str(tmp_path / "run"))
    changed = batch["input_ids"] != batch["original_ids"]
    assert changed.any() and not changed[batch["is_answer"] == 0].any()
    shown = "\n".join(
        line.plain for line in row_lines(batch, int(changed.sum(1).argmax()), tokenizer)
    )
    assert "→[MASK]" in shown
    (share,) = (
        cell
        for label, cell in zip(
            *(x.cells for x in batch_table(batch, tokenizer).columns), strict=True
        )
        if label == "masked tokens"
    )
    assert float(share.rstrip("%")) == pytest.approx(
        100 * changed.sum() / batch["is_answer"].sum(), abs=0.06
    )

    convert(str(tmp_path / "run"), str(tmp_path / "hf"), "huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| masking rates | uniform from 0.001 to 1, one for each row |" in card
    for key in ("mask_fractions", "data.masked_lm_prob", "filled_texts"):
        assert key not in card
    assert "| masked-diffusion loss (nats) |" in card
    options = {"length": 8, "steps": 4, "samples": 2}
    ours, theirs = (
        bert_jax.load(str(tmp_path / name)).write("What color has number 3?", "", **options)
        for name in ("run", "hf")
    )
    assert ours == theirs and all("color" not in written.text for written in ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.text_field": "answer"}, "name both fields, such as config.data.text_field=prompt"),
        ({"data.max_pairs_per_row": 2}, "data.rows is 'answers': such rows have no room"),
        ({"data.table_rows": "sentences"}, "a row with two texts is a document"),
    ],
)
def test_what_does_not_fit_is_refused(pairs, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        pretrain(config_of(pairs, **changes), tmp_path)
