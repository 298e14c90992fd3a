"""Which of several answers or endings is right: `bert.choose`."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import softmax

from bert_jax.base.errors import UserError
from bert_jax.heads.head import Head
from bert_jax.heads.verb import Item, Verb, value_of
from bert_jax.tasks.multiple_choice import commonsense_qa, swag
from bert_jax.tokenizers.given_texts import one_or_all, with_lists

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned


class Choice(NamedTuple):
    """One of the choices, its index and its probability."""

    text: str
    index: int
    probability: float


def choose(
    bert: "FineTuned",
    context: str | Sequence[str],
    choices: Sequence[str] | Sequence[Sequence[str]],
) -> list[Choice] | list[list[Choice]]:
    """Ranks answers to a question, or endings of a text, the likeliest first.

    Args:
      context: The question, or the text that the choices continue; or a list of them.
      choices: Two or more texts. For a model of SWAG they begin with `sent2`, as in training.
        For a list of contexts, a list with the choices of each; the result is then a list of
        lists.
    """
    pairs = with_lists(context, choices, "choices")
    if not all(texts for _, texts in pairs):
        raise UserError("there is no choice to rank; give each in quotes after the context")
    rows = bert.rows([(text, choice) for text, texts in pairs for choice in texts])
    logits = iter(bert.outputs(rows))
    found = []
    for _, texts in pairs:
        logits_C = np.concatenate([next(logits)[0] for _ in texts])
        probs_C = softmax(logits_C.astype(np.float64))
        ranked = np.argsort(-probs_C, kind="stable").tolist()
        found.append([Choice(texts[i], i, float(probs_C[i])) for i in ranked])
    return one_or_all(context, found)


def _predict(bert: "FineTuned", items: list[Item]) -> list[Item]:
    contexts, choices, names = [], [], []
    for item in items:
        if "sent1" in item:
            context, named, _ = swag(item)
        elif "question" in item and "context" not in item:
            context, named, _ = commonsense_qa(item)
        else:
            context = value_of(item, "context")
            # The words of a command line are a tuple.
            named = dict(enumerate(value_of(item, "choices", list | tuple)))
        contexts.append(context)
        choices.append(list(named.values()))
        names.append(list(named))
    found = choose(bert, contexts, choices)
    return [
        {
            "prediction": named[ranked[0].index],
            "probabilities": {str(named[x.index]): x.probability for x in ranked},
        }
        for named, ranked in zip(names, found, strict=True)
    ]


HEAD = Head(
    model="bert_jax.models.task_models:BertForMultipleChoice",
    loss="bert_jax.objectives.task_losses:Labels",
    num_outputs=1,
    task="multiple_choice",
    transformers_class="MultipleChoice",
    methods={"choose": choose},
    verb=Verb(
        "choose",
        _predict,
        inspect.signature(lambda context, *choices: None),
        example=("'Where do fish live?'", "'in trees'", "'in water'"),
    ),
)
