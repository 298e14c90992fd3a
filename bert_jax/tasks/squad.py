"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): the answer to a question is in a text."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks import sources, squad_data, squad_metrics
from bert_jax.tasks.sentence_rows import BadRows
from bert_jax.tasks.squad_answers import Ranking, rank_answers
from bert_jax.tasks.squad_windows import Windows, check_lengths
from bert_jax.tokenizers import Tokenizer

_FILES = {
    "train": ("train-v{}.json", "train.json"),
    "validation": ("dev-v{}.json", "dev.json", "validation.json"),
    "test": ("test-v{}.json", "test.json"),
}


class Squad:
    """See `bert_jax.tasks.task.Task`.

    Args:
      source: A folder with train-v1.1.json, dev-v1.1.json, test-v1.1.json (or v2.0), files
        as "train=FILE,validation=FILE", or tfds:squad/v1.1 or tfds:squad/v2.0.
      version: "1.1", or "2.0", in which questions may have no answer.
      max_seq_length, doc_stride, max_query_length: See `Windows`.
      n_best, max_answer_length: See `rank_answers`.
      null_threshold: SQuAD 2.0: how much higher the score of no answer must be than that of
        the best span for none to be given.
      bad_rows: "refuse" or "skip": what to do with bad questions.

    Raises:
      UserError: the source is not there or of the other version, or an option is out of
        range.
    """

    name = "squad"
    head = "question_answering"
    labels: tuple[str, ...] = ()
    metric = "f1"

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        version: str = "1.1",
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        n_best: int = 20,
        max_answer_length: int = 30,
        null_threshold: float = 0.0,
        bad_rows: str = "refuse",
    ):
        sources.check_bad_rows(bad_rows)
        check_lengths(max_seq_length, doc_stride, max_query_length)
        for key, value in (("n_best", n_best), ("max_answer_length", max_answer_length)):
            if value < 1:
                raise UserError(f"config.squad.{key} is {value}, but it must be at least 1")
        if version not in squad_data.VERSIONS:
            raise UserError(
                f"config.squad.version is {version!r}; it must be one of "
                + ", ".join(squad_data.VERSIONS)
            )
        self._version = version
        self._tokenizer, self._bad_rows = tokenizer, BadRows(bad_rows == "skip")
        self._lengths = {
            "max_seq_length": max_seq_length,
            "doc_stride": doc_stride,
            "max_query_length": max_query_length,
        }
        self._limits = {"n_best": n_best, "max_answer_length": max_answer_length}
        self._null_threshold = null_threshold
        self._files: dict[str, Path | epath.Path] = {}
        if source.startswith(sources.TFDS_PREFIX):
            self._builder = sources.tfds_builder(source)
            sources.check_features(self._builder, ("id", "context", "question", "answers"))
            found = "2.0" if "is_impossible" in self._builder.info.features else "1.1"
            squad_data.check_version(self._builder.info.full_name, found, version)
            self.splits = tuple(split for split in _FILES if split in self._builder.info.splits)
        else:
            names = {split: [n.format(version) for n in of] for split, of in _FILES.items()}
            self._files = sources.find_files(source, names)
            self.splits = tuple(self._files)
        self._rows: dict[str, Windows] = {}

    @property
    def dropped(self) -> Counter[str]:
        """Bad questions left out, by reason, of the splits read so far."""
        return self._bad_rows.dropped

    def rows(self, split: str) -> Windows:
        """The windows of all questions of a split."""
        if split not in self._rows:
            if self._files:
                read, source = squad_data.read_file, (self._files[split],)
            else:
                read, source = squad_data.read_tfds, (self._builder, split)
            questions = read(
                *source,
                self._tokenizer,
                self._bad_rows,
                version=self._version,
                labelled=not split.startswith("test"),
            )
            self._rows[split] = Windows(questions, self._tokenizer, **self._lengths)
        return self._rows[split]

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Of SQuAD 1.1 "exact_match" and "f1"; of 2.0 see `squad_metrics.score_2`."""
        questions = self.rows(split).questions
        answers = {q.id: q.answers for q in questions.questions if q.answers is not None}
        if len(answers) < len(questions.questions):
            raise UserError(f"the {split} questions of config.data.input do not tell their answers")
        rankings = self._rank(split, outputs)
        if not questions.with_no_answer:
            predictions = {r.question: r.prediction(self._null_threshold) for r in rankings}
            return squad_metrics.score_1(answers, predictions)
        # With the spans of all questions, so that the best threshold is one.
        spans = {r.question: r.best_span.text if r.best_span else "" for r in rankings}
        odds = {r.question: r.null_odds or 0.0 for r in rankings}
        return squad_metrics.score_2(answers, spans, odds, self._null_threshold)

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes predictions.json as the leaderboard takes it, and more beside it.

        nbest_predictions.json holds the candidates of each question with their probabilities
        and logits; of SQuAD 2.0 null_odds.json how much the score of no answer is above the
        best span's.

        Raises:
          UserError: the file is not named "predictions", as those beside it are after it.
        """
        path = files.open_path(path, "the predictions' file")
        if "predictions" not in path.name:
            raise UserError(f"{path} must be named like {self.predictions_name(split)}")
        rankings = self._rank(split, outputs)
        predictions = {r.question: r.prediction(self._null_threshold) for r in rankings}
        best = {
            ranking.question: [
                {
                    "text": answer.text,
                    "probability": answer.probability,
                    "start_logit": answer.start_logit,
                    "end_logit": answer.end_logit,
                }
                for answer in ranking.answers
            ]
            for ranking in rankings
        }
        _write_json(path.parent / f"nbest_{path.name}", best)
        if self.rows(split).questions.with_no_answer:
            name = path.name.replace("predictions", "null_odds")
            _write_json(path.parent / name, {r.question: r.null_odds for r in rankings})
        # Last: where it is, they all are.
        _write_json(path, predictions)

    def predictions_name(self, split: str) -> str:
        """predictions.json; of other splits than the validation set's with the name before."""
        return "predictions.json" if split == "validation" else f"{split}_predictions.json"

    def _rank(self, split: str, outputs: dict[str, np.ndarray]) -> list[Ranking]:
        logits = (outputs["start_logits"], outputs["end_logits"])
        return list(rank_answers(self.rows(split), *logits, **self._limits))


def _write_json(path: Path | epath.Path, content: dict) -> None:
    files.write_whole(path, (json.dumps(content, indent=4) + "\n").encode())
