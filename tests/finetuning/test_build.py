"""The initial weights, the task and the trainer of fine-tuning."""

import json
import shutil

import jax
import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.config.finetuning import filled_in, finetune_config, validate
from bert_jax.finetuning import build
from bert_jax.finetuning.first_state import make_first_state
from bert_jax.finetuning.run import check_segments, read_rows
from bert_jax.interop import formats
from bert_jax.interop.pretrained import TRAINING
from bert_jax.interop.weights import flatten
from tests.finetuning import small
from tests.interop.small_bert import edit_tensors, make_finetuned
from tests.small import small_config
from tests.tasks.conftest import both, open_task


@pytest.fixture
def files(tmp_path):
    small.write_bert(tmp_path / "hf")
    small.write_rows(tmp_path / "data", train=24)
    return tmp_path


def start(files, **overrides):
    """Returns the setup, the trainer and the state of step 0."""
    config = small.config(files / "hf", files / "data", **overrides)
    validate(config)
    setup = open_task_setup(config)
    config = filled_in(config, setup.model, setup.task.head, setup.task.labels)
    stage = build.make_stage(config, setup.task.rows("train"))
    trainer = build.make_trainer(config, stage)
    return setup, trainer, make_first_state(config, trainer, setup.read_weights)


def weights_of(trainer, state):
    return flatten(jax.device_get(state.params), trainer.model_config)


def begin(files, **overrides):
    """Returns the setup and the flat weights of step 0."""
    setup, trainer, state = start(files, **overrides)
    return setup, weights_of(trainer, state)


def same(one, other, names):
    return [np.array_equal(one[name], other[name]) for name in names]


def test_the_encoder_is_given_and_the_head_drawn_from_the_seed(files):
    setup, weights = begin(files)
    given = setup.read_weights().weights
    encoder = [name for name in weights if name.startswith("bert/")]
    assert set(weights) - set(encoder) == {"classifier/dense/kernel", "classifier/dense/bias"}
    assert all(same(weights, given, encoder))
    _, again = begin(files)
    _, other = begin(files, seed=1)
    assert all(same(weights, again, weights))
    assert not np.array_equal(other["classifier/dense/kernel"], weights["classifier/dense/kernel"])


def test_from_scratch_uses_only_shape_and_vocabulary(files):
    setup, weights = begin(files, from_scratch=True)
    given = setup.read_weights().weights
    kernels = [name for name in weights if name.startswith("bert/") and name.endswith("kernel")]
    assert not any(same(weights, given, kernels))
    assert weights[kernels[0]].shape == given[kernels[0]].shape
    assert setup.tokenizer.vocab_size == 28


def test_sinusoidal_positions_apply_to_weights_drawn_from_the_seed(files):
    table = "bert/embeddings/position_embeddings"
    setup, weights = begin(files, sinusoidal_positions=0.5)
    assert all(same(weights, setup.read_weights().weights, [table]))
    _, weights = begin(files, sinusoidal_positions=0.5, from_scratch=True)
    np.testing.assert_array_equal(weights[table][0], [0.0] * 12 + [0.5] * 12)


def test_a_missing_pooler_is_drawn_with_a_warning(files, capsys):
    def remove(tensors):
        for name in [name for name in tensors if "pooler" in name]:
            del tensors[name]

    edit_tensors(files / "hf", remove)
    _, weights = begin(files)
    assert "no trained pooler: it is initialized at random" in capsys.readouterr().out
    assert np.any(weights["bert/pooler/dense/kernel"])


def test_the_head_of_another_task_is_left_out_with_a_warning(files, capsys):
    tuned = make_finetuned("sequence_classification", ("yes", "no"))
    formats.write(tuned, files / "tuned", "huggingface")
    given = formats.read(files / "tuned").weights
    _, weights = begin(files, init_from=str(files / "tuned"))
    assert f"the task head of {files / 'tuned'} is left out" in capsys.readouterr().out
    assert all(same(weights, given, [name for name in given if name.startswith("bert/")]))
    assert not same(weights, given, ["classifier/dense/kernel"])[0]


def test_the_head_of_the_same_labels_is_kept(files):
    tuned = make_finetuned("sequence_classification", ("no", "yes"))
    formats.write(tuned, files / "tuned", "huggingface")
    given = formats.read(files / "tuned").weights
    _, weights = begin(files, init_from=str(files / "tuned"))
    assert weights.keys() == given.keys() and all(same(weights, given, given))


def short_run(files, **overrides):
    """Trains for one epoch."""
    one_epoch = {"train.num_epochs": 1.0}
    finetune(small.config(files / "hf", files / "data", **one_epoch | overrides), files / "run")


def test_layer_decay_affects_the_step(files):
    setup, trainer, state = start(files, **{"optimizer.layer_decay": 1e-3})
    before, batch = weights_of(trainer, state), setup.task.rows("train").take(np.arange(8))
    for _ in range(2):
        state, _ = trainer.train_step(state, batch)
    after = weights_of(trainer, state)
    steps = [
        np.abs(after[name] - before[name]).max()
        for name in ("bert/encoder/layer_0/output/kernel", "bert/pooler/dense/kernel")
    ]
    assert 0 < steps[0] < 0.01 * steps[1]


@pytest.mark.slow
def test_finished_run_predicts_when_rerun_with_eval_predict(files, capsys):
    short_run(files)
    directory = files / "run"
    folder, best, checkpoints = (directory / n for n in ("predictions", "best", "checkpoints"))
    assert not folder.exists()
    metrics = (directory / "metrics.jsonl").read_bytes()
    results = json.loads((directory / "results.json").read_text())
    # A sweep keeps only the best weights of its best run.
    checkpoints.rename(files / "checkpoints")
    short_run(files, **{"eval.predict": "all"})
    assert len((folder / "test.csv").read_text().splitlines()) == 13
    assert len((folder / "validation.csv").read_text().splitlines()) == 49
    assert (directory / "metrics.jsonl").read_bytes() == metrics
    scored = json.loads((directory / "results.json").read_text())
    # Six of the twelve labels of the test split are "yes".
    assert scored.pop("test")["accuracy"] == 0.5 and scored == results

    # Changed rows are predicted again.
    path, predicted = files / "data" / "test.tsv", (folder / "test.csv").read_text().splitlines()
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:1] + rows[4:6]))
    short_run(files, **{"eval.predict": "test"})
    message = "the rows or the threshold of the test split are others: predicting it again"
    assert message in capsys.readouterr().out
    anew = [line.partition(",")[2] for line in (folder / "test.csv").read_text().splitlines()[1:]]
    assert anew == [line.partition(",")[2] for line in predicted[4:6]]

    # Without a test split only the validation split is predicted.
    path.unlink()
    shutil.rmtree(folder)
    short_run(files, **{"eval.predict": "all"})
    assert [path.name for path in folder.iterdir()] == ["validation.csv"]
    path.write_text("".join(rows))

    # A sweep removes the best weights of its other runs.
    shutil.rmtree(folder)
    shutil.rmtree(best)
    again = {"train.num_epochs": 1.0, "eval.predict": "test"}
    finetune(small.config(files / "hf", files / "data", **again), directory)
    assert "warning: no predictions are written: the best weights" in capsys.readouterr().out
    assert not folder.exists()

    # The last state is scored once more.
    (files / "checkpoints").rename(checkpoints)
    (directory / "results.json").unlink()
    short_run(files, **{"eval.predict": "test"})
    again = json.loads((directory / "results.json").read_text())
    assert again["best_step"] == again["step"] == results["step"] == 3
    assert again["validation"] == results["validation"]
    assert [path.name for path in folder.iterdir()] == ["test.csv"] and best.exists()


def test_steps_and_epochs(files):
    rows = begin(files)[0].task.rows("train")
    config = finetune_config("table")
    config.data.max_seq_length = 16
    for epochs, size, steps in ((1.0, 8, 3), (3.0, 16, 4), (0.5, 8, 1)):
        config.train.num_epochs, config.train.batch_size = epochs, size
        stage = build.make_stage(config, rows)
        assert (stage.num_steps, stage.batch_size) == (steps, size)
        assert stage.max_seq_length == 16


def test_untrained_positions_give_a_warning(files, capsys):
    """Weights from bert_jax contain the config of the run that trained them."""
    config = small_config()
    training = {"step": config.train.num_steps, "config": config_lib.to_dict(config)}
    (files / "hf" / TRAINING).write_text(json.dumps(training))
    begin(files, data__max_seq_length=16)
    assert "positions" not in capsys.readouterr().out
    begin(files, data__max_seq_length=20)
    assert "20, but" in (printed := capsys.readouterr().out)
    assert "sequences of up to 16" in printed
    begin(files, data__max_seq_length=20, from_scratch=True)
    assert "positions" not in capsys.readouterr().out


def test_data_identity_depends_on_the_data(files):
    setup, _ = begin(files)
    before = setup.data_identity
    assert before["rows"] == {"train": 24, "validation": 48}
    path = files / "data" / "train.tsv"
    path.write_text(path.read_text().replace("yes", "no", 1))
    setup, _ = begin(files)
    after = setup.data_identity
    assert after["rows"] == before["rows"]
    assert after["sha256"]["train"] != before["sha256"]["train"]
    assert after["sha256"]["validation"] == before["sha256"]["validation"]


def test_pairs_need_two_token_types_or_none(tmp_path):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        path = tmp_path / "data" / f"{split}.tsv"
        path.write_text("text\tother\tlabel\n" + "a b\tc\tyes\nd\te f\tno\n" * 8)

    def check(types):
        small.write_bert(tmp_path / f"{types}_types", type_vocab_size=types)
        config = small.config(tmp_path / f"{types}_types", tmp_path / "data")
        config.table.text_b_column = "other"
        setup = open_task_setup(config)
        config = filled_in(config, setup.model, setup.task.head, setup.task.labels)
        read_rows(config, setup.task)
        check_segments(config, setup.task.rows("train"))

    with pytest.raises(UserError, match="1_types, which has only one token type .* are pairs"):
        check(1)
    check(0)
    check(2)


SQUAD = {
    "context": "a b c d",
    "qas": [{"id": "q1", "question": "e", "answers": [{"text": "b", "answer_start": 2}]}],
}
VALIDATION = {
    "squad": ("json", json.dumps({"data": [{"paragraphs": [SQUAD]}]})),
    "ner": ("conll", "a B-X\nb O\n"),
    "multiple_choice": (
        "jsonl",
        '{"id": "q1", "question": "a", "answerKey": "B", '
        '"choices": {"label": ["A", "B"], "text": ["b", "c"]}}\n',
    ),
}


@pytest.mark.parametrize(
    "name,old,new",
    [
        ("squad", "q1", "q2"),
        # A second right answer, and the spelling of the context, which the tokenizer lowercases.
        ("squad", "2}]", '2}, {"text": "c", "answer_start": 4}]'),
        ("squad", "a b c d", "a b C d"),
        ("ner", "a B-X", "A B-X"),
        ("multiple_choice", "q1", "q2"),
    ],
)
def test_every_change_of_scores_or_predictions_changes_the_fingerprint(files, name, old, new):
    tokenizer = formats.read(files / "hf").tokenizer
    suffix, text = VALIDATION[name]
    path = files / f"validation.{suffix}"

    def fingerprint(text):
        path.write_text(text)
        task = open_task(name, both(path), tokenizer, max_seq_length=96)
        return task.rows("validation").fingerprint()

    assert old in text
    assert fingerprint(text) == fingerprint(text) != fingerprint(text.replace(old, new))
