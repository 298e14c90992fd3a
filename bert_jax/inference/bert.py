"""A trained model in memory: masked words, next sentences, scores, features and attention."""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference import POOLINGS, compiled_forward
from bert_jax.inference.batches import run_in_batches
from bert_jax.inference.compiled_forward import Inputs
from bert_jax.inference.encode_text import Text, encode
from bert_jax.inference.predictions import Attention, Detection, Guess, Score
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.interop.weights import unflatten
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import MASK, TokenRow

# Tokens in a full batch. On a CPU, their activations fit into the cache; an accelerator needs more
# tokens.
_BATCH_TOKENS = {"cpu": 1024}
_ACCELERATOR_BATCH_TOKENS = 2**15
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
      max_length: The most tokens of a text; longer texts are cut off with a warning.
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
        pretrained.fit_vocabulary()
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
        self._batch_tokens = _BATCH_TOKENS.get(jax.default_backend(), _ACCELERATOR_BATCH_TOKENS)

    def fill_mask(
        self, text: str, text_b: str | None = None, *, top_k: int = 5
    ) -> list[list[Guess]]:
        """Predicts the tokens at each [MASK], all masks at once.

        Args:
          text: A text with at least one [MASK]; see `Tokenizer.encode_masked`.
          text_b: A second sentence, if any.
          top_k: The number of guesses for each mask.

        Returns:
          The guesses for each mask in order, the most likely first.

        Raises:
          UserError: There is no mask, or one beyond `max_length`; or the model has no trained
            masked-LM head.
        """
        self._require("fill_mask", self._mlm)
        (row,) = self.rows([one_or_two(text, text_b)], masks=True)
        num_masks = self._count_masks(text, text_b)
        if not num_masks:
            raise UserError(f"{text[:40]!r} has no {MASK}; put one in the place of a word")
        guesses = self._guesses(row, top_k)
        if len(guesses) < num_masks:
            raise UserError(
                f"the text is longer than {self.max_length} tokens, and "
                f"{num_masks - len(guesses)} {MASK} in it would be cut off; shorten it"
            )
        return list(guesses.values())

    def next_sentence(self, text: str, text_b: str) -> float:
        """Returns the probability that `text_b` followed `text` in one document.

        Raises:
          UserError: A sentence is empty, or the model has no trained next-sentence head.
        """
        self._require("next_sentence", NEXT_SENTENCE)
        rows = self.rows([(text, text_b)])
        (log_probs_2,) = self._run(rows, lambda inputs: self._log_probs(inputs, NEXT_SENTENCE))
        return float(np.exp(log_probs_2[0]))

    def encode(
        self,
        texts: Iterable[Text],
        *,
        pooling: str | None = None,
        layers: int | Sequence[int] = -1,
        max_length: int | None = None,
        normalize: bool | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Returns contextual features of texts, or of their tokens.

        Args:
          texts: Sentences, or pairs of sentences.
          pooling: "cls" takes the first token's hidden state; "mean" averages the states of all
            tokens, with [CLS] and [SEP]; "tokens" takes every token's state. None means that of
            `embedding`.
          layers: One layer or a sequence of K: 0 is the embeddings' output, n the output of the
            n-th block, -1 the last.
          max_length: The length at which texts are cut off; None means that of `embedding`.
          normalize: Whether to scale vectors to length 1; None means as in `embedding`, except for
            "tokens".

        Returns:
          float32 [N, D], or [N, K, D] for a sequence of layers. With "tokens" a list of
          [L, D] or [L, K, D] for texts of L tokens.

        Raises:
          UserError: A text is empty, or a layer or the pooling does not exist.
        """
        one_layer = not isinstance(layers, Iterable)
        chosen = self.layers([layers] if one_layer else layers)
        how = self.embedding_with(pooling, normalize, max_length)
        pooling = how.pooling
        if isinstance(texts, str):
            raise UserError("encode takes a list of texts; put one text in brackets")
        features = self.features(self.rows(texts, how.max_length), chosen, how)
        if one_layer:
            features = [x[..., 0, :] for x in features]
        if pooling == "tokens":
            return features
        if not features:
            width = () if one_layer else (len(chosen),)
            return np.zeros((0, *width, self.config.hidden_size), np.float32)
        return np.stack(features)

    def score(self, text: str) -> Score:
        """Scores each token of a text given all others.

        Raises:
          UserError: The text is empty, or the model has no trained masked-LM head.
        """
        self._require("score", self._mlm)
        (row,) = self.rows([text])
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
        tokens = [self.tokenizer.id_to_token(i) for i in ids]
        return Score(math.fsum(log_probs), tokens, log_probs)

    def detect(self, text: str, text_b: str | None = None) -> list[Detection]:
        """Finds the tokens that look replaced, with ELECTRA's discriminator.

        Returns:
          Every token of the text or texts, with special tokens, in order.

        Raises:
          UserError: A text is empty, or the model has no trained head for replaced tokens.
        """
        self._require("detect", REPLACED_TOKEN)
        (row,) = self.rows([one_or_two(text, text_b)])
        program = partial(compiled_forward.replaced, self.config, self._params)
        (probabilities_L,) = self._run([row], program)
        return [
            Detection(self.tokenizer.id_to_token(i), float(p), bool(p > 0.5))
            for i, p in zip(row.input_ids_L, probabilities_L, strict=False)
        ]

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
        (row,) = self.rows([one_or_two(text, text_b)], max_length, masks=True)
        missing = self._missing[self._mlm]
        guesses = {} if missing else self._guesses(row, top_k)
        num_missing = self._count_masks(text, text_b) - len(guesses)
        if num_missing:
            cause = missing or "beyond the maximum length"
            warnings.warn(f"no predictions for {num_missing} {MASK}: {cause}", stacklevel=2)
        program = partial(compiled_forward.attention, self.config, self._params)
        (probabilities_NxAxLxL,) = self._run([row], program)
        length = len(row.input_ids_L)
        return Attention(
            [self.tokenizer.id_to_token(i) for i in row.input_ids_L],
            row.num_first,
            probabilities_NxAxLxL[..., :length, :length],
            guesses,
        )

    def rows(
        self, texts: Iterable[Text], max_length: int | None = None, *, masks: bool = False
    ) -> list[TokenRow]:
        """Tokenizes texts, with a warning if some are cut off.

        Raises:
          UserError: A text is empty, or `max_length` is out of range.
        """
        length = self.length(max_length)
        texts = list(texts)
        if any(isinstance(text, tuple) for text in texts):
            self.require_segments()
        rows = encode(self.tokenizer, texts, length, masks=masks)
        if cut := sum(row.num_cut > 0 for row in rows):
            which = "the text is" if len(rows) == 1 else f"{cut:,} of {len(rows):,} texts are"
            warnings.warn(f"{which} truncated to {length} tokens", stacklevel=3)
        return rows

    @property
    def takes_pairs(self) -> bool:
        """Whether the model has the token types of a pair of sentences."""
        return self.tokenizer.template.num_segments <= max(1, self.config.type_vocab_size)

    def require_segments(self) -> None:
        """Raises UserError if the model does not take pairs of sentences."""
        if not self.takes_pairs:
            raise UserError(f"{self.source} has one segment and does not take pairs of sentences")

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
        """Returns layers as numbers that are not negative; 0 is the embeddings.

        Raises:
          UserError: The model does not have one of them.
        """
        count = self.config.num_hidden_layers + 1
        layers = [operator.index(layer) for layer in layers]
        if not layers or not all(-count <= layer < count for layer in layers):
            raise UserError(
                f"layers is {layers}; for {self.source} it must be one or more numbers from 0 "
                f"(embeddings) to {count - 1}, or from -{count} to -1 (the last)"
            )
        return tuple(layer % count for layer in layers)

    def embedding_with(
        self, pooling: str | None, normalize: bool | None, max_length: int | None
    ) -> Embedding:
        """Returns `embedding` with the given values in place of its own.

        Raises:
          UserError: There is no such pooling, or the length is out of range.
        """
        own = self.embedding
        pooling = own.pooling if pooling is None else pooling
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
        if normalize is None:
            normalize = own.normalize and pooling != "tokens"
        if max_length is None and own.max_length:
            max_length = min(own.max_length, self.max_length)
        return Embedding(pooling, normalize, self.length(max_length))

    def features(
        self, rows: Sequence[TokenRow], layers: tuple[int, ...], how: Embedding
    ) -> list[np.ndarray]:
        """Returns the features of each row: float32 [K, D], or [L, K, D] for "tokens"."""
        program = partial(
            compiled_forward.features, self.config, self._params, layers=layers, pooling=how.pooling
        )
        features = self._run(rows, program)
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
            batch_tokens=self._batch_tokens,
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

    def _guesses(self, row: TokenRow, top_k: int) -> dict[int, list[Guess]]:
        """Returns the most likely tokens of each masked position."""
        if not 1 <= top_k <= self.config.vocab_size:
            raise UserError(
                f"top_k is {top_k}; it must be from 1 to the {self.config.vocab_size:,} entries of "
                "the vocabulary"
            )
        positions = np.flatnonzero(row.input_ids_L == self.tokenizer.mask_id)
        if not len(positions):
            return {}
        # Padding the number of masks keeps the number of compiled shapes small.
        padded = np.zeros((1, 1 << (len(positions) - 1).bit_length()), np.int32)
        padded[0, : len(positions)] = positions
        program = partial(self._token_log_probs, positions_BxM=padded)
        (log_probs_MxW,) = self._run([row], program)
        guesses = {}
        for position, log_probs_W in zip(positions.tolist(), log_probs_MxW, strict=False):
            log_probs_V = log_probs_W[: self.config.vocab_size]
            best = np.argsort(-log_probs_V, kind="stable")[:top_k]
            guesses[position] = [
                Guess(self.tokenizer.id_to_token(i), math.exp(log_probs_V[i])) for i in best
            ]
        return guesses

    def _count_masks(self, text: str, text_b: str | None) -> int:
        return sum(len(self.tokenizer.split_at_masks(t)) - 1 for t in (text, text_b or ""))

    def _require(self, method: str, term: str) -> None:
        if self._missing[term]:
            raise UserError(f"{self._missing[term]}, which {method} needs; features need no head")


def one_or_two(text: str, text_b: str | None) -> Text:
    """Returns a sentence, or a pair if there is a second one."""
    return text if text_b is None else (text, text_b)
