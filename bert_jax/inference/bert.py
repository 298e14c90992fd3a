"""A trained model in memory: masked words, next sentences, scores, features and attention."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import compiled_forward, embeddings, encode_text
from bert_jax.inference.batches import run_in_batches
from bert_jax.inference.compiled_forward import Inputs
from bert_jax.inference.encode_text import SecondTexts, Text, Texts, as_texts, encode, one_or_all
from bert_jax.inference.guesses import guess_masks
from bert_jax.inference.predictions import Attention, Detection, Guess, Score
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.interop.weights import unflatten
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import MASK, TokenRow

# [CLS], a token and [SEP], twice.
_LEAST_LENGTH = 5
MASKED_LM, NEXT_SENTENCE = "masked_lm", "next_sentence"
GENERATOR, REPLACED_TOKEN = "generator", "replaced_token"


class Bert:
    """A model in memory; `bert_jax.load` returns one.

    Each shape is compiled when it first occurs: the first call with a new length takes a
    second or two longer.

    Attributes:
      source: The path that the model was read from.
      config: The model's hyperparameters.
      tokenizer: The model's tokenizer.
      max_length: The most tokens of a text; longer texts are truncated with a warning.
      embedding: How `encode` turns a text into a vector by default: mean pooling, or the settings
        of a directory of sentence-transformers.
      notes: Warnings from reading the model, a sentence each.
    """

    def __init__(self, pretrained: Pretrained):
        if pretrained.tokenizer is None:
            raise UserError(
                f"{pretrained.source} has no tokenizer; give it one with python -m "
                "bert_jax.convert --vocab=vocab.txt"
            )
        pretrained.cut_padding()
        self.source = pretrained.source
        self.config = pretrained.model_config
        self.tokenizer = pretrained.tokenizer
        self.max_length = pretrained.max_length
        self.embedding = pretrained.embedding
        self.notes = pretrained.warnings
        # ELECTRA's generator fills masks.
        self._mlm = GENERATOR if GENERATOR in pretrained.terms else MASKED_LM
        terms = (self._mlm, NEXT_SENTENCE, REPLACED_TOKEN)
        self._missing = {term: pretrained.missing_head(term) for term in terms}
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
        for text_or_pair, guesses in zip(texts, self._guesses(rows, top_k), strict=True):
            num_masks = self._count_masks(text_or_pair)
            if not num_masks:
                shown = text_or_pair if isinstance(text_or_pair, str) else text_or_pair[0]
                raise UserError(f"{shown[:40]!r} has no {MASK}; put one in the place of a word")
            if len(guesses) < num_masks:
                raise UserError(
                    f"the text is longer than {self.max_length} tokens, and "
                    f"{num_masks - len(guesses)} {MASK} in it would be cut off; shorten it"
                )
            found.append(list(guesses.values()))
        return one_or_all(text, found)

    def next_sentence(self, text: Texts, text_b: SecondTexts = None) -> float | list[float]:
        """Returns the probability that `text_b` followed `text` in one document.

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
        log_probs = self._run(
            self.rows(pairs), lambda inputs: self._log_probs(inputs, NEXT_SENTENCE)
        )
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
    ) -> np.ndarray | list[np.ndarray]:
        """Returns contextual features of texts, or of their tokens; a blank text is [CLS] [SEP].

        Args:
          texts: Sentences, or pairs of sentences; or one sentence, for the features of it alone.
          pooling: "cls" takes the first token's hidden state; "mean" averages the states of all
            tokens, with [CLS] and [SEP]; "tokens" takes every token's state. None means that of
            `embedding`.
          layers: One layer or a sequence of K: 0 is the embeddings' output, n the output of the
            n-th block, -1 the last.
          max_length: The length at which texts are cut off; None means that of `embedding`.
          normalize: Whether to scale vectors to length 1; None means as in `embedding`, except for
            "tokens".
          stride: If given, longer texts are not cut, but divided into windows of `max_length` that
            begin this many tokens apart, and the vectors of the windows are averaged.

        Returns:
          float32 [N, D], or [N, K, D] for a sequence of layers. With "tokens" a list of
          [L, D] or [L, K, D] for texts of L tokens.

        Raises:
          UserError: A layer or the pooling does not exist.
        """
        one_layer = not isinstance(layers, Iterable)
        chosen = self.layers([layers] if one_layer else layers)
        how = self.embedding_with(pooling, normalize, max_length, stride)
        several = [texts] if isinstance(texts, str) else list(texts)
        blank: list[str] = []
        if stride:
            rows = encode(self.tokenizer, several, None, pairs_allowed=False, blank=blank)
        else:
            rows = self.rows(several, how.max_length, blank=blank)
        encode_text.warn_of_blank(blank, len(rows))
        features = self.features(rows, chosen, how)
        if one_layer:
            features = [x[..., 0, :] for x in features]
        if isinstance(texts, str):
            return features[0]
        if how.pooling == "tokens":
            return features
        if not features:
            width = () if one_layer else (len(chosen),)
            return np.zeros((0, *width, self.config.hidden_size), np.float32)
        return np.stack(features)

    def score(self, text: str | Sequence[str]) -> Score | list[Score]:
        """Scores each token of a text given all others; a list gives a list of results.

        Raises:
          UserError: The text is empty, or the model has no trained masked-LM head.
        """
        self._require("score", self._mlm)
        return one_or_all(text, [self._score(row) for row in self.rows(as_texts(text))])

    def _score(self, row: TokenRow) -> Score:
        template = self.tokenizer.template
        first, after = len(template.before), len(template.after)
        ids = row.input_ids_L[first : len(row.input_ids_L) - after].tolist()
        masked = [row._replace(input_ids_L=row.input_ids_L.copy()) for _ in ids]
        for i, copy in enumerate(masked):
            copy.input_ids_L[first + i] = self.tokenizer.mask_id

        def program(inputs: Inputs) -> jax.Array:
            positions_B = np.argmax(inputs.input_ids_BxL == self.tokenizer.mask_id, axis=1)
            return self._token_log_probs(inputs, positions_B[:, None].astype(np.int32))

        log_probs_1xV = self._run(masked, program)
        log_probs = [float(x[0, i]) for i, x in zip(ids, log_probs_1xV, strict=True)]
        tokens = [self.tokenizer.piece_text(i) for i in ids]
        return Score(math.fsum(log_probs), tokens, log_probs)

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
        program = partial(compiled_forward.replaced, self.config, self._params)
        found = [
            [
                Detection(self.tokenizer.piece_text(i), float(p), bool(p > 0.5))
                for i, p in zip(row.input_ids_L, probabilities_L, strict=False)
            ]
            for row, probabilities_L in zip(rows, self._run(rows, program), strict=True)
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
        """Returns the attention of every token of a text, in every layer and head.

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
        guesses = {} if missing else self._guesses([row], top_k)[0]
        num_missing = self._count_masks(*texts) - len(guesses)
        if num_missing:
            cause = missing or "beyond the maximum length"
            warnings.warn(f"no predictions for {num_missing} {MASK}: {cause}", stacklevel=2)
        program = partial(compiled_forward.attention, self.config, self._params)
        (probabilities_NxAxLxL,) = self._run([row], program)
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
        length = self.length(max_length)
        texts = list(texts)
        if any(isinstance(text, tuple) for text in texts):
            self.require_segments()
        rows = encode(self.tokenizer, texts, length, **options)
        if cut := sum(row.num_cut > 0 for row in rows):
            which = "the text is" if len(rows) == 1 else f"{cut:,} of {len(rows):,} texts are"
            warnings.warn(f"{which} truncated to {length} tokens", stacklevel=3)
        encode_text.warn_of_unknown(self.tokenizer, rows, self.source)
        return rows

    def require_segments(self) -> None:
        """Raises UserError if the model lacks a token type for each segment of the tokenizer."""
        if self.tokenizer.template.num_segments > 1 and self.config.type_vocab_size == 1:
            raise UserError(f"{self.source} has a single token type and takes no pairs")

    def length(self, max_length: int | None) -> int:
        """Returns `max_length`, or the model's if it is None.

        Raises:
          UserError: The length is out of range.
        """
        if max_length is None:
            return self.max_length
        if not _LEAST_LENGTH <= max_length <= self.max_length:
            raise UserError(
                f"max_length is {max_length}; for {self.source} it must be from {_LEAST_LENGTH} "
                f"to {self.max_length}"
            )
        return max_length

    def layers(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Returns layers as numbers that are not negative; see `embeddings.numbered`."""
        return embeddings.numbered(layers, self.config.num_hidden_layers + 1, self.source)

    def embedding_with(
        self,
        pooling: str | None,
        normalize: bool | None,
        max_length: int | None,
        stride: int | None = None,
    ) -> Embedding:
        """Returns `embedding`, with those arguments that are not None in place of its values.

        Raises:
          UserError: There is no such pooling, or the length or the stride is out of range.
        """
        if max_length is None and self.embedding.max_length:
            max_length = min(self.embedding.max_length, self.max_length)
        num_special = self.tokenizer.template.num_special(is_pair=False)
        length = self.length(max_length)
        return embeddings.choose(self.embedding, pooling, normalize, length, stride, num_special)

    def features(
        self, rows: Sequence[TokenRow], layers: tuple[int, ...], how: Embedding
    ) -> list[np.ndarray]:
        """Returns the features of each row: float32 [K, D], or [L, K, D] for "tokens"."""
        program = partial(
            compiled_forward.features, self.config, self._params, layers=layers, pooling=how.pooling
        )
        run = partial(self._run, program=program)
        if how.stride:
            features = embeddings.mean_over_windows(run, rows, self.tokenizer, how)
        else:
            features = run(rows)
        if how.normalize:
            features = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in features]
        if how.pooling != "tokens":
            return features
        return [
            states_KxLxD.swapaxes(0, 1)[: len(row.input_ids_L)]
            for row, states_KxLxD in zip(rows, features, strict=True)
        ]

    def _run(
        self, rows: Sequence[TokenRow], program: Callable[[Inputs], jax.Array]
    ) -> list[np.ndarray]:
        """Runs all rows in batches and returns the results of each row."""
        return run_in_batches(
            rows,
            program,
            max_length=self.config.max_position_embeddings,
            source=self.source,
        )

    def _log_probs(self, inputs: Inputs, name: str, **fields: np.ndarray) -> jax.Array:
        """Returns the log-probabilities of a term's head, which reads additional `fields`."""
        (term,) = make_terms([name])
        return compiled_forward.log_probs(self.config, self._params, inputs, term, **fields)

    def _token_log_probs(self, inputs: Inputs, positions_BxM: np.ndarray) -> jax.Array:
        """Returns log_probs_BxMxW of the tokens at some positions."""
        zeros_BxM = np.zeros_like(positions_BxM)
        return self._log_probs(
            inputs,
            self._mlm,
            masked_lm_positions=positions_BxM,
            # The generator would put samples where the weight is not 0.
            masked_lm_ids=zeros_BxM,
            masked_lm_weights=zeros_BxM.astype(np.float32),
        )

    def _guesses(self, rows: Sequence[TokenRow], top_k: int) -> list[dict[int, list[Guess]]]:
        """Returns the most likely tokens of each masked position of each row."""
        if not 1 <= top_k <= self.config.vocab_size:
            raise UserError(
                f"top_k is {top_k}; it must be from 1 to the {self.config.vocab_size:,} entries of "
                "the vocabulary"
            )
        return guess_masks(
            rows, top_k, self.config.vocab_size, self.tokenizer, self._run, self._token_log_probs
        )

    def _count_masks(self, text: Text) -> int:
        sides = (text,) if isinstance(text, str) else text
        return sum(len(self.tokenizer.split_at_masks(side)) - 1 for side in sides)

    def _require(self, method: str, term: str) -> None:
        if self._missing[term]:
            raise UserError(f"{self._missing[term]}, which {method} needs; features need no head")
