"""Where the answer to a question stands in a text: `bert.answer`."""

import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.config.task_sections import TASK_SECTIONS
from bert_jax.heads.head import Head
from bert_jax.heads.verb import FileFormat, Item, Verb, values_of
from bert_jax.tasks.squad_answers import Answer, rank_answers
from bert_jax.tasks.squad_data import Context, Question, Windows, read_file
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.readers import suffix_of
from bert_jax.tokenizers.given_texts import as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned


def answer(
    bert: "FineTuned",
    question: str | Sequence[str],
    context: str | Sequence[str],
    *,
    n_best: int = 5,
    with_no_answer: bool | None = None,
    null_threshold: float | None = None,
) -> list[Answer] | list[list[Answer]]:
    """Finds the parts of a text that answer a question, the likeliest first.

    A text of any length is read in overlapping windows. Probabilities are over the n best
    candidates, as in SQuAD's nbest_predictions.json, not over all spans.

    Args:
      question: The question, truncated to the length of questions in training; or a list.
      context: The text; for a list of questions, a list with the text of each. The result is
        then a list of lists.
      n_best: The largest number of answers to return.
      with_no_answer: Whether the answer may be empty, for a model of SQuAD 2.0. An empty one
        comes first if its score is above the best span's by `null_threshold`. None means True
        if the weights record that they were fine-tuned on SQuAD 2.0.
      null_threshold: Such as `best_f1_thresh` in the results of the training; by default that
        of the training, `config.squad.null_threshold`.
    """
    bert.require_segments()
    own = _settings(bert)
    if with_no_answer is None:
        with_no_answer = own["version"] == "2.0"
    if null_threshold is None:
        null_threshold = own["null_threshold"]
    elif not with_no_answer:
        raise UserError("null_threshold has no effect without with_no_answer=True")
    pairs = as_texts(question, context)
    if not pairs:
        return []
    ids = bert.tokenizer.encode_batch([asked for asked, _ in pairs])
    texts = dict.fromkeys(text for _, text in pairs)
    contexts = {text: Context(text, *bert.tokenizer.encode_aligned(text)) for text in texts}
    limit = own["max_query_length"]
    if any(len(ids_Q) > limit for ids_Q in ids):
        warnings.warn(f"the question is truncated to {limit} tokens", stacklevel=2)
    queries = [
        Question(str(number), ids_Q, contexts[text])
        for number, (ids_Q, (_, text)) in enumerate(zip(ids, pairs, strict=True))
    ]
    cut = {key: own[key] for key in ("doc_stride", "max_query_length")}
    windows = Windows(queries, bert.tokenizer, max_seq_length=bert.max_length, **cut)
    logits = bert.outputs(list(windows))
    ends, starts = ([x[i] for x in logits] for i in (0, 1))
    rankings = rank_answers(
        windows,
        starts,
        ends,
        n_best=max(n_best, own["n_best"]),
        max_answer_length=own["max_answer_length"],
        with_no_answer=with_no_answer,
    )
    found = []
    for ranking in rankings:
        answers = ranking.answers
        if with_no_answer:
            predicted = ranking.prediction(null_threshold)
            answers = sorted(answers, key=lambda answer, best=predicted: answer.text != best)
        found.append(answers[:n_best])
    return one_or_all(question, found)


def _settings(bert: "FineTuned") -> dict[str, Any]:
    """Returns `config.squad` of the training; that of configs/finetune/squad.py without one."""
    defaults = {key: field.default for key, field in TASK_SECTIONS["squad"].items()} | {
        "doc_stride": min(128, bert.max_length // 4),
        "max_query_length": min(64, bert.max_length // 2),
        "version": "",
    }
    return defaults | bert.trained.get("squad", {})


def _predict(bert: "FineTuned", items: list[Item], **options: Any) -> list[Item]:
    found = answer(bert, values_of(items, "question"), values_of(items, "context"), **options)
    keys = ("text", "start", "end", "probability")
    return [
        {
            "prediction": answers[0].text if answers else "",
            "answers": [{key: getattr(x, key) for key in keys} for x in answers],
        }
        for answers in found
    ]


def _questions(path: epath.Path) -> Iterator[tuple[str, Item]]:
    for where, context, raw in read_file(path, BadRecords()):
        yield where, {key: raw.get(key) for key in ("id", "question")} | {"context": context}


HEAD = Head(
    model="bert_jax.models.task_models:BertForQuestionAnswering",
    loss="bert_jax.objectives.task_losses:AnswerSpan",
    num_outputs=2,
    task="squad",
    transformers_class="QuestionAnswering",
    methods={"answer": answer},
    verb=Verb(
        "answer",
        _predict,
        inspect.signature(lambda question, context: None),
        ("n_best", "with_no_answer", "null_threshold"),
        FileFormat("SQuAD's JSON", lambda path: suffix_of(path) == ".json", _questions),
        ("'Who came?'", "'Only Ada came to see us.'"),
    ),
)
