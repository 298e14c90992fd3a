"""Which tokens of a text look replaced (ELECTRA)."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bert_jax.inference import forward
from bert_jax.tokenizers.given_texts import SecondTexts, Texts, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert


class Detection(NamedTuple):
    """A token, the probability that it is not the original one, and whether that is above 1/2."""

    token: str
    probability: float
    replaced: bool


def detect(
    bert: "Bert", text: Texts, text_b: SecondTexts = None
) -> list[Detection] | list[list[Detection]]:
    """Finds the tokens that look replaced, with ELECTRA's discriminator.

    Returns:
      Every token of the text or pair, with special tokens, in order; a list for each text of a
      list.
    """
    rows = bert.rows(as_texts(text, text_b))
    program = partial(forward.replaced, bert.config, bert.params)
    found = [
        [
            Detection(bert.tokenizer.piece_text(i), float(p), bool(p > 0.5))
            for i, p in zip(row.input_ids_L, probabilities_L, strict=False)
        ]
        for row, probabilities_L in zip(rows, bert.run(rows, program), strict=True)
    ]
    return one_or_all(text, found)
