"""A trained model in memory: masked words, next sentences, scores, features and attention."""

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NoReturn

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import POOLINGS, encode_text, forward
from bert_jax.inference.encode_text import (
    SecondTexts,
    Text,
    Texts,
    as_texts,
    encode,
    one_or_all,
    with_prompt,
)
from bert_jax.inference.forward import Inputs, run_in_batches
from bert_jax.inference.predictions import (
    Attention,
    Detection,
    Guess,
    Score,
    guess_masks,
    score_tokens,
)
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.interop.weights import unflatten
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import MASK, TokenRow

# The length of a pair of single tokens: [CLS] a [SEP] b [SEP].
_MIN_LENGTH = 5
MASKED_LM, NEXT_SENTENCE = "masked_lm", "next_sentence"
GENERATOR, REPLACED_TOKEN = "generator", "replaced_token"


# The methods that only fine-tuned models have.
_OF_HEADS = ("classify", "answer", "tag", "tag_texts", "entities", "choose")


class MissingMethodError(UserError, AttributeError):
    """A model of this kind does not have a method that another kind has."""


class Bert:
    """A model in memory; `bert_jax.load` returns one.

    Each shape is compiled when it first occurs: the first call with a new length takes a
    second or two longer.

    Attributes:
      source: The path that the model was read from.
      config: The model's hyperparameters.
      tokenizer: The model's tokenizer.
      max_length: The largest number of tokens in a text; longer texts are truncated with a warning.
      embedding: How `encode` turns a text into a vector by default: mean pooling, or the settings
        of a directory of sentence-transformers.
    """

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_HEADS:
            raise MissingMethodError(
                f"{self.source} has no task head: it must be a work directory of python -m "
                "bert_jax.finetune, or a Hugging Face directory of a "
                "BertForSequenceClassification, ...TokenClassification, ...QuestionAnswering or "
                "...MultipleChoice"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __init__(self, pretrained: Pretrained):
        if pretrained.tokenizer is None:
            raise UserError(
                f"{pretrained.source} has no tokenizer; give it one with python -m "
                f"bert_jax.convert --input={pretrained.source} --vocab=vocab.txt --to=bert_jax "
                "--output=DIR"
            )
        pretrained.cut_padding()
        self.source = pretrained.source
        self.config = pretrained.model_config
        self.tokenizer = pretrained.tokenizer
        self.max_length = pretrained.max_length
        self.embedding = pretrained.embedding
        # ELECTRA's generator fills masks.
        self._mlm = GENERATOR if GENERATOR in pretrained.terms else MASKED_LM
        terms = (self._mlm, NEXT_SENTENCE, REPLACED_TOKEN)
        self._missing = {term: pretrained.missing_head(term) for term in terms}
        self._has_mask = self.tokenizer.mask_id < self.config.vocab_size
        if not self._has_mask:
            mask = self.tokenizer.special_tokens.mask
            self._missing[self._mlm] = f"{self.source} has no row for {mask}"
        self._params = jax.device_put(unflatten(pretrained.weights, self.config))

    def __repr__(self) -> str:
        shape = f"{self.config.num_hidden_layers} layers of {self.config.hidden_size}"
        return f"{type(self).__name__}({self.source!r}, {shape}, up to {self.max_length} tokens)"

    def fill_mask(
        self,
        text: str | Sequence[Text],
        text_b: str | Sequence[str] | None = None,
        *,
        top_k: int = 5,
    ) -> list[list[Guess]] | list[list[list[Guess]]]:
        """Predicts the tokens at each [MASK], all masks at once.

        Args:
          text: A text with at least one [MASK] (see `Tokenizer.encode_masked`), or a list of texts
            or pairs.
          text_b: A second sentence, if any; for a list of texts a list.
          top_k: The number of guesses for each mask.

        Returns:
          The guesses for each mask in order, the most likely first; for a list of texts a list of
          such results.

        Raises:
          UserError: There is no mask, or one beyond `max_length`; or the model has no trained
            masked-LM head.
        """
        self._require("fill_mask", self._mlm)
        texts = as_texts(text, text_b)
        rows = self.rows(texts, masks=True)
        found = []
        for text_or_pair, guesses in zip(texts, guess_masks(self, rows, top_k), strict=True):
            num_masks = self._count_masks(text_or_pair)
            if not num_masks:
                shown = text_or_pair if isinstance(text_or_pair, str) else text_or_pair[0]
                raise UserError(f"{shown[:40]!r} has no {MASK}; write it instead of a word")
            if len(guesses) < num_masks:
                raise UserError(
                    f"the text is longer than {self.max_length} tokens, and "
                    f"{num_masks - len(guesses)} {MASK} in it would be cut off; shorten it"
                )
            found.append(list(guesses.values()))
        return one_or_all(text, found)

    def next_sentence(self, text: Texts, text_b: SecondTexts = None) -> float | list[float]:
        """Computes the probability that `text_b` followed `text` in one document.

        Args:
          text: A sentence; or a list of sentences or of pairs, for a list of probabilities.
          text_b: The other sentence, or a list of them; None if `text` is a list of pairs.

        Raises:
          UserError: A sentence is empty, or the model has no trained next-sentence head.
        """
        self._require("next_sentence", NEXT_SENTENCE)
        pairs = as_texts(text, text_b)
        if not all(isinstance(pair, tuple) for pair in pairs):
            raise UserError("next_sentence takes two sentences, or a list of pairs")
        program = partial(self._log_probs, name=NEXT_SENTENCE)
        log_probs = self.run(self.rows(pairs), program)
        return one_or_all(text, [float(np.exp(log_probs_2[0])) for log_probs_2 in log_probs])

    def encode(
        self,
        texts: str | Iterable[Text],
        *,
        pooling: str | None = None,
        layers: int | Sequence[int] = -1,
        max_length: int | None = None,
        normalize: bool | None = None,
        stride: int | None = None,
        prompt: str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Computes contextual features of texts, or of their tokens; a blank text is `[CLS] [SEP]`.

        Args:
          texts: Sentences, or pairs of sentences; or a single sentence.
          pooling: "cls" takes the first token's hidden state; "mean" averages the states of all
            tokens, with [CLS] and [SEP]; "tokens" takes every token's state. The default is in
            `embedding`.
          layers: One layer or a sequence of K: 0 is the embeddings' output, n the output of the
            n-th block, -1 the last.
          max_length: The length at which texts are cut off; the default is in `embedding`.
          normalize: Whether to scale vectors to length 1; the default is in `embedding`, and False
            for "tokens".
          stride: If given, longer texts are not cut, but split into windows of `max_length` that
            begin this many tokens apart, and the vectors of the windows are averaged.
          prompt: What is put before each text, such as "query: "; the default is in `embedding`.

        Returns:
          float32 [N, D], or [N, K, D] for a sequence of layers. With "tokens" a list of
          [L, D] or [L, K, D] for texts of L tokens. For a single sentence, without N or the list.

        Raises:
          UserError: A layer or the pooling does not exist.
        """
        one_layer = not isinstance(layers, Iterable)
        chosen = self.layers([layers] if one_layer else layers)
        embedding = self.embedding_with(pooling, normalize, max_length, stride, prompt)
        several = with_prompt([texts] if isinstance(texts, str) else list(texts), embedding)
        blank: list[str] = []
        if stride:
            rows = encode(self.tokenizer, several, None, pairs_allowed=False, blank=blank)
        else:
            rows = self.rows(several, embedding.max_length, blank=blank)
        encode_text.warn_about_blank(blank, len(rows))
        features = self.features(rows, chosen, embedding)
        if one_layer:
            features = [x[..., 0, :] for x in features]
        if isinstance(texts, str):
            return features[0]
        if embedding.pooling == "tokens":
            return features
        if not features:
            width = () if one_layer else (len(chosen),)
            return np.zeros((0, *width, self.config.hidden_size), np.float32)
        return np.stack(features)

    def score(self, text: str | Sequence[str]) -> Score | list[Score]:
        """Scores each token of a text given all others; a list of texts gives a list of scores.

        Raises:
          UserError: The text is empty, or the model has no trained masked-LM head.
        """
        self._require("score", self._mlm)
        return one_or_all(text, [score_tokens(self, row) for row in self.rows(as_texts(text))])

    def detect(
        self, text: Texts, text_b: SecondTexts = None
    ) -> list[Detection] | list[list[Detection]]:
        """Finds the tokens that look replaced, with ELECTRA's discriminator.

        Returns:
          Every token of the text or pair, with special tokens, in order; a list for each text of a
          list.

        Raises:
          UserError: A text is empty, or the model has no trained head for replaced tokens.
        """
        self._require("detect", REPLACED_TOKEN)
        rows = self.rows(as_texts(text, text_b))
        program = partial(forward.replaced, self.config, self._params)
        found = [
            [
                Detection(self.tokenizer.piece_text(i), float(p), bool(p > 0.5))
                for i, p in zip(row.input_ids_L, probabilities_L, strict=False)
            ]
            for row, probabilities_L in zip(rows, self.run(rows, program), strict=True)
        ]
        return one_or_all(text, found)

    def attention(
        self,
        text: str,
        text_b: str | None = None,
        *,
        top_k: int = 5,
        max_length: int | None = None,
    ) -> Attention:
        """Computes the attention of every token of a text, in every layer and head.

        [MASK] in the text is the mask token. The result has guesses for each mask if the model has
        a masked-LM head; otherwise there is a warning.

        Raises:
          UserError: A sentence is empty.
        """
        texts = as_texts(text, text_b)
        if not isinstance(text, str):
            raise UserError("attention takes one text or pair, not a list")
        (row,) = self.rows(texts, max_length, masks=True)
        missing = self._missing[self._mlm]
        guesses = {} if missing else guess_masks(self, [row], top_k)[0]
        num_missing = self._count_masks(*texts) - len(guesses)
        if num_missing:
            cause = missing or "beyond the maximum length"
            warnings.warn(f"no predictions for {num_missing} {MASK}: {cause}", stacklevel=2)
        program = partial(forward.attention, self.config, self._params)
        (probabilities_NxAxLxL,) = self.run([row], program)
        length = len(row.input_ids_L)
        return Attention(
            [self.tokenizer.piece_text(i) for i in row.input_ids_L],
            row.num_first,
            probabilities_NxAxLxL[..., :length, :length],
            guesses,
        )

    def rows(
        self, texts: Iterable[Text], max_length: int | None = None, **options: object
    ) -> list[TokenRow]:
        """Tokenizes texts, with a warning if some are cut off. `encode_text.encode` has `options`.

        Raises:
          UserError: A text cannot be used, or `max_length` is out of range.
        """
        length = self._length(max_length)
        texts = list(texts)
        if any(isinstance(text, tuple) for text in texts):
            self.require_segments()
        rows = encode(self.tokenizer, texts, length, **options)
        if not self._has_mask and any(self.tokenizer.mask_id in row.input_ids_L for row in rows):
            raise UserError(f"{self._missing[self._mlm]}, which the text has")
        if cut := sum(row.num_cut > 0 for row in rows):
            which = "the text is" if len(rows) == 1 else f"{cut:,} of {len(rows):,} texts are"
            warnings.warn(f"{which} truncated to {length} tokens", stacklevel=3)
        encode_text.warn_about_unknown(self.tokenizer, rows, self.source)
        return rows

    def require_segments(self) -> None:
        """Raises UserError if the model lacks a token type for each segment of the tokenizer."""
        if self.tokenizer.template.num_segments > 1 and self.config.type_vocab_size == 1:
            raise UserError(f"{self.source} has a single token type and takes no pairs")

    def _length(self, max_length: int | None) -> int:
        if max_length is None:
            return self.max_length
        if not _MIN_LENGTH <= max_length <= self.max_length:
            raise UserError(
                f"max_length is {max_length}; for {self.source} it must be from {_MIN_LENGTH} "
                f"to {self.max_length}"
            )
        return max_length

    def layers(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Converts layers to numbers from 0, the embeddings, to the last block's.

        Raises:
          UserError: There is no such layer.
        """
        layers = [operator.index(layer) for layer in layers]
        count = self.config.num_hidden_layers + 1
        if not layers or not all(-count <= layer < count for layer in layers):
            raise UserError(
                f"layers is {layers}; for {self.source} it must be one or more numbers from 0 "
                f"(embeddings) to {count - 1}, or from -{count} to -1 (the last)"
            )
        return tuple(layer % count for layer in layers)

    def embedding_with(
        self,
        pooling: str | None,
        normalize: bool | None,
        max_length: int | None,
        stride: int | None = None,
        prompt: str | None = None,
    ) -> Embedding:
        """Returns `embedding` with the arguments that are not None instead of its own values.

        Raises:
          UserError: There is no such pooling, or the length or the stride is out of range.
        """
        own = self.embedding
        if max_length is None and own.max_length:
            max_length = min(own.max_length, self.max_length)
        length = self._length(max_length)
        pooling = own.pooling if pooling is None else pooling
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
        if normalize is None:
            normalize = own.normalize and pooling != "tokens"
        size = length - self.tokenizer.template.num_special(is_pair=False)
        if stride is not None and (pooling == "tokens" or not 1 <= stride <= size):
            raise UserError(
                f"stride is {stride}; it must be from 1 to {size}, the text tokens of a window, "
                "with the pooling mean or cls"
            )
        return own._replace(
            pooling=pooling,
            normalize=normalize,
            max_length=length,
            stride=stride,
            prompt=own.prompt if prompt is None else prompt,
        )

    def features(
        self, rows: Sequence[TokenRow], layers: tuple[int, ...], embedding: Embedding
    ) -> list[np.ndarray]:
        """Computes the features of each row: float32 [K, D], or [L, K, D] for "tokens"."""
        program = partial(
            forward.features, self.config, self._params, layers=layers, pooling=embedding.pooling
        )
        if embedding.stride:
            windows = [encode_text.split_row(row, self.tokenizer, embedding) for row in rows]
            vectors = iter(self.run([window for group in windows for window in group], program))
            features = [np.mean([next(vectors) for _ in group], axis=0) for group in windows]
        else:
            features = self.run(rows, program)
        if embedding.normalize:
            features = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in features]
        if embedding.pooling != "tokens":
            return features
        return [
            states_KxLxD.swapaxes(0, 1)[: len(row.input_ids_L)]
            for row, states_KxLxD in zip(rows, features, strict=True)
        ]

    def run(
        self, rows: Sequence[TokenRow], program: Callable[[Inputs], jax.Array]
    ) -> list[np.ndarray]:
        """Runs a compiled program on all rows in batches; see `run_in_batches`."""
        return run_in_batches(
            rows,
            program,
            max_length=self.config.max_position_embeddings,
            source=self.source,
        )

    def _log_probs(self, inputs: Inputs, name: str, **fields: np.ndarray) -> jax.Array:
        (term,) = make_terms([name])
        return forward.log_probs(self.config, self._params, inputs, term, **fields)

    def token_log_probs(self, inputs: Inputs, positions_BxM: np.ndarray) -> jax.Array:
        """Computes the log-probabilities of the tokens at some positions: float32 [B, M, W]."""
        zeros_BxM = np.zeros_like(positions_BxM)
        return self._log_probs(
            inputs,
            self._mlm,
            masked_lm_positions=positions_BxM,
            # The generator would put samples where the weight is not 0.
            masked_lm_ids=zeros_BxM,
            masked_lm_weights=zeros_BxM.astype(np.float32),
        )

    def _count_masks(self, text: Text) -> int:
        sides = (text,) if isinstance(text, str) else text
        return sum(len(self.tokenizer.split_at_masks(side)) - 1 for side in sides)

    def _require(self, method: str, term: str) -> None:
        if self._missing[term]:
            raise UserError(f"{self._missing[term]}, which {method} needs; features need no head")
