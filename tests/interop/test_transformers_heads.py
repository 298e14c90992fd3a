"""Fine-tuned models, loaded by `transformers` itself; skipped where it is not installed.

pip install torch 'transformers<5' && pytest tests/interop/test_transformers_heads.py
"""

import jax
import numpy as np
import pytest

from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from bert_jax.models import BertConfig
from bert_jax.models.tasks import make_task_model
from tests.interop.small_bert import copies, make_finetuned
from tests.interop.test_transformers import random_inputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LABELS = ("no", "perhaps", "yes")


@pytest.mark.parametrize(
    "head,labels,class_name",
    [
        ("sequence_classification", LABELS, "BertForSequenceClassification"),
        ("sequence_classification", (), "BertForSequenceClassification"),
        ("token_classification", LABELS, "BertForTokenClassification"),
        ("question_answering", (), "BertForQuestionAnswering"),
        ("multiple_choice", (), "BertForMultipleChoice"),
    ],
)
def test_the_same_logits_and_labels_there(tmp_path, head, labels, class_name):
    pretrained = make_finetuned(head, labels)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    theirs, report = getattr(transformers, class_name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(report.values()), report
    assert theirs.config.architectures == [class_name]
    if labels:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert theirs.config.label2id == {name: i for i, name in enumerate(labels)}
    elif head == "sequence_classification":
        assert theirs.config.problem_type == "regression" and theirs.config.num_labels == 1

    ids, types, mask = random_inputs(pretrained.model)
    if head == "multiple_choice":
        ids, types, mask = (np.stack([x, x[::-1]], axis=1) for x in (ids, types, mask))
    with torch.no_grad():
        output = theirs.eval()(
            input_ids=torch.tensor(ids),
            token_type_ids=torch.tensor(np.ascontiguousarray(types)),
            attention_mask=torch.tensor(np.ascontiguousarray(mask)),
        )
    config = BertConfig.from_dict(pretrained.model)
    ours = jax.device_get(
        make_task_model(head, len(labels), config).apply(
            {"params": unflatten(weights, config)}, ids, types, mask, deterministic=True
        )
    )
    real = mask.astype(bool) if head in ("token_classification", "question_answering") else ...
    for name, logits in ours.items():
        np.testing.assert_allclose(logits[real], output[name].numpy()[real], atol=1e-4)
