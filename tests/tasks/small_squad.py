"""Files of SQuAD with a few questions, and outputs of a model that is certain of them."""

import json

import numpy as np

from bert_jax import tokenizers
from bert_jax.tasks.squad import Squad
from tests.golden.record_squad import VOCABULARY

CONTEXT = "The Senate met in Café New-York; 3 men\u00ad came: “José”, Ann, and 中国."


def load_tokenizer():
    return tokenizers.from_file(
        "wordpiece", VOCABULARY, lowercase=True, max_input_chars_per_word=200
    )


def question(id="q1", text="Who met?", answers=(("The Senate", 0),), **more):
    answers = [{"text": t, "answer_start": start} for t, start in answers]
    return {"id": id, "question": text, "answers": answers} | more


def squad(*questions, version="1.1", context=CONTEXT):
    content = {"data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
    return content | ({"version": version} if version else {})


def write(folder, content, name="dev-v1.1.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def make(tmp_path, tokenizer, content, **options):
    write(tmp_path, content, f"dev-v{options.get('version', '1.1')}.json")
    return Squad(str(tmp_path), tokenizer, **{"max_seq_length": 96, **options})


def certain(rows, answers):
    """Logits that leave no doubt: of the row's labels, or of [CLS] where `answers` says none."""
    batch = rows.take(np.arange(len(rows)))
    shape = batch["input_ids"].shape
    result = {"start_logits": np.zeros(shape, np.float32), "end_logits": np.zeros(shape)}
    for row in range(len(rows)):
        for side in ("start", "end"):
            at = batch[f"{side}_positions"][row] if answers[rows.question_N[row]] else 0
            result[f"{side}_logits"][row, at] = 10
    return result
