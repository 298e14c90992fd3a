"""A BART in memory: reconstructs damaged texts, or generates the texts it was fine-tuned on."""

import dataclasses
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import forward
from bert_jax.inference.bert import Bert
from bert_jax.inference.encode_text import as_texts, one_or_all
from bert_jax.interop.generation import generation_keys, search_of
from bert_jax.interop.pretrained import Pretrained
from bert_jax.tokenizers import MASK

DENOISING = "denoising"


class Bart(Bert):
    """A `Bert` with a decoder; `bert_jax.load` returns one. Features are those of its encoder.

    Attributes:
      text_columns: The column of the source texts that the model was fine-tuned on; empty if it
        was not fine-tuned.
    """

    def __init__(self, pretrained: Pretrained):
        super().__init__(pretrained)
        self._missing[DENOISING] = pretrained.missing_head(DENOISING)
        self._generation = generation_keys(pretrained)
        task = (pretrained.training.get("config") or {}).get("seq2seq")
        self.text_columns = (task["source_column"],) if task else ()
        self._trained_target_length = task["max_target_length"] if task else self.max_length

    def fill_mask(self, text: Any, text_b: Any = None, *, top_k: int = 5) -> Any:
        """Refuses: a mask of a BART stands for any number of tokens.

        Raises:
          UserError: Always; the message names `denoise`.
        """
        raise UserError(
            f"{self.source} is a BART, whose masks stand for any number of tokens: use denoise, "
            "which writes the whole text"
        )

    def denoise(self, text: str | Sequence[str], **options: Any) -> str | list[str]:
        """Reconstructs a text in which masks stand for missing words.

        Args:
          text: A text, with or without masks (see `Tokenizer.encode_masked`), or a list.
          **options: See `generate`.

        Raises:
          UserError: As for `generate`.
        """
        return self._generate("denoise", text, options, masks=True)

    def generate(
        self,
        text: str | Sequence[str],
        *,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        min_length: int | None = None,
        no_repeat_ngram_size: int | None = None,
    ) -> str | list[str]:
        """Generates a text from a text, as `generate` of `transformers` does.

        `bert_jax.models.generation.Search` describes the options. The defaults are those that the
        model was fine-tuned with, or that its generation_config.json has. Without these, a text may
        have about twice as many tokens as the given one, rounded up, and at most `max_length`.

        Args:
          text: A text, in which a mask is plain text; or a list of texts.
          num_beams: The number of beams; 1 is greedy search.
          max_new_tokens: The largest number of tokens; a warning tells of more than in training.
          length_penalty: A higher value prefers longer texts.
          early_stopping: When a search ends.
          min_length: The smallest number of tokens.
          no_repeat_ngram_size: No sequence of this many tokens occurs twice.

        Returns:
          The generated text; a list of texts for a list.

        Raises:
          UserError: A text is empty, an option is out of range, or the decoder is not trained.
        """
        options = {
            "num_beams": num_beams,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            "min_length": min_length,
            "no_repeat_ngram_size": no_repeat_ngram_size,
        }
        return self._generate("generate", text, options)

    def _generate(
        self, method: str, text: str | Sequence[str], options: dict[str, Any], masks: bool = False
    ) -> str | list[str]:
        self._require(method, DENOISING)
        texts = as_texts(text)
        rows = self.rows(texts, masks=masks)
        for masked, row in zip(texts if masks else (), rows, strict=False):
            num_kept = np.count_nonzero(row.input_ids_L == self.tokenizer.mask_id)
            if num_cut := self._count_masks(masked) - num_kept:
                raise UserError(
                    f"the text is longer than {self.max_length} tokens, and {num_cut} {MASK} in it "
                    "would be cut off; shorten it"
                )
        typed = options.get("max_new_tokens")
        if type(typed) is int and typed > self._trained_target_length:
            warnings.warn(
                f"max_new_tokens is {typed}, but {self.source} was trained on texts of up to "
                f"{self._trained_target_length} tokens",
                stacklevel=3,
            )
        model = dataclasses.asdict(self.config)
        searches = [
            search_of(
                self._generation,
                options,
                model=model,
                # A smaller cache takes less time. The text does not depend on other texts.
                default_max_new_tokens=forward.bucket(2 * len(row.input_ids_L), self.max_length),
                source=self.source,
            )
            for row in rows
        ]
        found = [""] * len(rows)
        for search in dict.fromkeys(searches):
            indices = [i for i, other in enumerate(searches) if other == search]
            program = partial(forward.generated, self.config, self._params, search=search)
            generated = self.run(
                [rows[i] for i in indices], program, search.num_beams * search.max_new_tokens
            )
            for i, ids_T in zip(indices, generated, strict=True):
                if (ids_T < 0).any():
                    raise UserError(f"{self.source} computes NaN: its weights are damaged")
                found[i] = self.tokenizer.decode_text(ids_T)
        return one_or_all(text, found)
