"""The threshold of SQuAD 2.0 in a run, in its predictions and in `evaluate`."""

import json
import random

import pytest

from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune
from bert_jax.commands.score_file import score_file
from bert_jax.config import finetune_config
from bert_jax.interop import formats
from tests.finetuning.small import LETTERS, OVERRIDES
from tests.interop import small_bert


def write_questions(folder, split, count, seed):
    draw = random.Random(seed)
    questions = []
    for number in range(count):
        words, answers, at = draw.choices(LETTERS[:-1], k=6), [], draw.randrange(6)
        if draw.random() < 0.7:
            words[at] = "j"
            answers = [{"text": "j", "answer_start": 2 * at}]
        asked = {"id": f"{split}{number}", "question": draw.choice(LETTERS), "answers": answers}
        asked["is_impossible"] = not answers
        questions.append({"context": " ".join(words), "qas": [asked]})
    content = {"version": "v2.0", "data": [{"title": "", "paragraphs": questions}]}
    (folder / f"{split}-v2.0.json").write_text(json.dumps(content))


def test_test_splits_have_the_best_threshold_of_the_validation_split(bert, tmp_path):
    for seed, (split, count) in enumerate((("train", 96), ("dev", 24), ("test", 24))):
        write_questions(tmp_path, split, count, seed)
    config = finetune_config("squad")
    squad = {"version": "2.0", "doc_stride": 4, "max_query_length": 4}
    values = OVERRIDES | {f"squad.{key}": value for key, value in squad.items()}
    values |= {"init_from": str(bert), "data.input": str(tmp_path)}
    config.update_from_flattened_dict(values | {"eval.predict": "test"})
    run = tmp_path / "run"
    results = finetune(config, run)
    best = results["validation"]["best_f1_thresh"]
    assert best != 0
    predictions = run / "predictions" / "test_predictions.json"
    odds = json.loads((run / "predictions" / "test_null_odds.json").read_text())

    def refused():
        return {key for key, text in json.loads(predictions.read_text()).items() if not text}

    assert refused() == {key for key, value in odds.items() if value > best}
    file = tmp_path / "test-v2.0.json"
    assert score_file(run, file, null_threshold=best)["f1"] == results["test"]["f1"]
    zero = score_file(run, file, null_threshold=0.0)
    assert zero == score_file(run, file)
    score = score_file(run, tmp_path / "dev-v2.0.json", null_threshold=best)["f1"]
    assert score == results["validation"]["best_f1"]

    # A finished run is predicted again with another threshold, and only then.
    written = predictions.stat().st_mtime_ns
    finetune(config, run)
    assert predictions.stat().st_mtime_ns == written
    config.squad.null_threshold = max(odds.values()) + 1
    finetune(config, run)
    assert refused() == set()


def test_the_file_shows_the_version_of_weights_without_a_config(tmp_path):
    model = tmp_path / "hf"
    pretrained = small_bert.make_finetuned("question_answering", num_hidden_layers=1)
    formats.write(pretrained, model, "huggingface")
    write_questions(tmp_path, "dev", 12, 0)
    file = tmp_path / "dev-v2.0.json"
    with_answers = score_file(model, file, null_threshold=1e9)
    without = score_file(model, file, null_threshold=-1e9)
    assert without["NoAns_f1"] == 100.0 and without["HasAns_f1"] == 0.0
    assert with_answers["NoAns_f1"] == 0.0

    content = json.loads(file.read_text())
    paragraphs = content["data"][0]["paragraphs"]
    content["data"][0]["paragraphs"] = [p for p in paragraphs if p["qas"][0]["answers"]]
    file.write_text(json.dumps(content))
    assert "NoAns_f1" not in score_file(model, file)
    with pytest.raises(UserError, match="--null_threshold is for models that were fine-tuned on"):
        score_file(model, file, null_threshold=1.0)
