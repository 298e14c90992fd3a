"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): the answer to a question is in a text."""

import json
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.data import tfds_source
from bert_jax.errors import UserError
from bert_jax.tasks import sources, squad_data, squad_metrics
from bert_jax.tasks.squad_answers import Ranking, rank_answers
from bert_jax.tasks.squad_windows import Windows
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer

_FILES = {
    "train": ("train-v{}.json", "train.json"),
    "validation": ("dev-v{}.json", "dev.json", "validation.json"),
    "test": ("test-v{}.json", "test.json"),
}


class SquadTask(Task):
    """See `Task`.

    Args:
      source: A folder with train-v1.1.json, dev-v1.1.json, test-v1.1.json (or v2.0), files
        as "train=FILE,validation=FILE", or tfds:squad/v1.1 or tfds:squad/v2.0.
      version: "1.1"; or "2.0", in which questions may have no answer.
      max_seq_length, doc_stride, max_query_length: See `Windows`.
      n_best, max_answer_length: See `rank_answers`.
      null_threshold: SQuAD 2.0 predicts no answer if its score is this far above that of the
        best span.

    Raises:
      UserError: The data do not exist or are of the other version, or the lengths leave no
        room for a context.
    """

    name = "squad"
    head = "question_answering"
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
        if max_seq_length < max_query_length + 4:
            raise UserError(
                f"config.squad.max_query_length is {max_query_length} and "
                f"config.data.max_seq_length {max_seq_length}: the second must be larger by 4 or "
                "more, for special tokens and a context"
            )
        self._version, self._with_no_answer = version, version == "2.0"
        self._tokenizer = tokenizer
        self._lengths = {
            "max_seq_length": max_seq_length,
            "doc_stride": doc_stride,
            "max_query_length": max_query_length,
        }
        self._limits = {"n_best": n_best, "max_answer_length": max_answer_length}
        self._null_threshold = null_threshold
        self._files: sources.SplitFiles = {}
        if source.startswith(tfds_source.TFDS_PREFIX):
            self._builder = tfds_source.open_downloaded(source)
            info = self._builder.info
            tfds_source.check_features(self._builder, ("id", "context", "question", "answers"))
            found = "2.0" if "is_impossible" in info.features else "1.1"
            squad_data.check_version(info.full_name, found, version)
            splits = tuple(split for split in _FILES if split in info.splits)
        else:
            names = {split: [n.format(version) for n in of] for split, of in _FILES.items()}
            self._files = sources.find_files(source, names)
            splits = tuple(self._files)
        super().__init__(splits, bad_rows)

    def read_rows(self, split: str) -> Windows:
        if self._files:
            paragraphs = squad_data.read_file(self._files[split], self._version)
        else:
            paragraphs = squad_data.read_tfds(self._builder, split)
        questions = squad_data.tokenized_questions(
            paragraphs,
            self._tokenizer,
            self._bad_rows,
            version=self._version,
            is_test=split.startswith("test"),
        )
        if not questions:
            source = self._files.get(split, f"the {split} split of config.data.input")
            raise UserError(f"{source}: there is no question that can be used")
        return Windows(questions, self._tokenizer, **self._lengths)

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns "exact_match" and "f1" for SQuAD 1.1; for 2.0 see `squad_metrics.score_2`."""
        answers = {q.id: q.answers for q in self.rows(split).questions}
        if None in answers.values():
            raise UserError(f"the {split} questions of config.data.input have no known answers")
        rankings = self._rank(split, outputs)
        if not self._with_no_answer:
            predictions = {r.question: r.prediction(self._null_threshold) for r in rankings}
            return squad_metrics.score_1(answers, predictions)
        # The best threshold is found among the spans of all questions.
        spans = {r.question: r.best_span.text if r.best_span else "" for r in rankings}
        odds = {r.question: r.null_odds or 0.0 for r in rankings}
        return squad_metrics.score_2(answers, spans, odds, self._null_threshold)

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes predictions.json for the leaderboard, and more files beside it.

        nbest_predictions.json holds the candidates for each question with their probabilities
        and logits. For SQuAD 2.0, null_odds.json holds how far the score of no answer is above
        that of the best span.

        Raises:
          UserError: The name of the file does not contain "predictions", from which the other
            names are made.
        """
        path = files.open_path(path, "the file of predictions")
        if "predictions" not in path.name:
            raise UserError(f"{path} must be named like {self.predictions_name(split)}")
        rankings = self._rank(split, outputs)
        shown = ("text", "probability", "start_logit", "end_logit")
        best = {
            ranking.question: [{key: getattr(a, key) for key in shown} for a in ranking.answers]
            for ranking in rankings
        }
        _write_json(path.parent / f"nbest_{path.name}", best)
        if self._with_no_answer:
            name = path.name.replace("predictions", "null_odds")
            _write_json(path.parent / name, {r.question: r.null_odds for r in rankings})
        # Written last: if it exists, all do.
        predictions = {r.question: r.prediction(self._null_threshold) for r in rankings}
        _write_json(path, predictions)

    def predictions_name(self, split: str) -> str:
        """Returns predictions.json, or SPLIT_predictions.json for other splits than validation."""
        return "predictions.json" if split == "validation" else f"{split}_predictions.json"

    def _rank(self, split: str, outputs: dict[str, np.ndarray]) -> list[Ranking]:
        return list(
            rank_answers(
                self.rows(split),
                outputs["start_logits"],
                outputs["end_logits"],
                with_no_answer=self._with_no_answer,
                **self._limits,
            )
        )


def _write_json(path: Any, content: dict) -> None:
    files.write_whole(path, (json.dumps(content, indent=4) + "\n").encode())
