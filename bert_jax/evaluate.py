"""Held-out masked-LM and next-sentence scores, beside a unigram baseline.

    python -m bert_jax.evaluate --workdir=DIR [--data=GLOB] [--output=FILE.json]

Pairs and masks are fixed by `config.eval.seed`: a run is asked the same questions of a
text at every step and every time. Masking is at 15 % whatever the training rate.
"""

import contextlib
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import flags
from etils import epath
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bert_jax import cli, files, workdir
from bert_jax.data.prepare_store import tokenize_corpus
from bert_jax.data.store import TokenStore
from bert_jax.data.stream import evaluation_batches
from bert_jax.errors import UserError
from bert_jax.input_setup import evaluation_spec
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.progress import Progress
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer


def evaluate(
    trainer: Trainer,
    params: Any,
    stage: Stage,
    *,
    store: TokenStore,
    tokenizer: Tokenizer,
    token_counts_V: np.ndarray,
    config: ConfigDict,
    advance: Callable[[int], None] = lambda sequences: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Scores `params` on a split of a token store.

    Args:
      trainer: Supplies the compiled evaluation step.
      params: Parameters as the trainer shards them.
      stage: Gives sequence length and predictions a sequence.
      store: The documents to be scored on.
      tokenizer: The one the store was written with.
      token_counts_V: int64 counts of the *training* text, for the baseline.
      config: The run's; `eval` and `data` are used.
      advance: Called with the number of sequences just scored.
      stop: Asked after every batch; True ends the evaluation without results.

    Returns:
      mlm_loss (nats), mlm_accuracy, mlm_perplexity, nsp_loss, nsp_accuracy,
      unigram_mlm_loss and unigram_mlm_accuracy on the same tokens, the accuracy of
      always guessing the commoner label (majority_nsp_accuracy), num_sequences.

    Raises:
      UserError: the text gives no pair of sentences.
    """
    spec = evaluation_spec(config, stage, num_data_shards(trainer.mesh))
    batches = evaluation_batches(
        store,
        tokenizer,
        spec,
        config.eval.max_sequences,
        **multihost.batch_shards(trainer.layout.batch),
    )
    log_probs_V = unigram_log_probs(token_counts_V)
    totals: dict[str, float] = {}
    for batch in trainer.put(batches):
        sums = jax.device_get(trainer.eval_step(params, batch, log_probs_V))
        for name, value in sums.items():
            totals[name] = totals.get(name, 0.0) + float(value)
        advance(int(sums["num_sequences"]))
        if stop():
            return {}
    if not totals or not totals["num_sequences"]:
        raise UserError(f"{store.directory} gives no pair of sentences to evaluate on")
    return _averages(totals)


def unigram_log_probs(token_counts_V: np.ndarray) -> np.ndarray:
    """float32 log p(token) from counts, each raised by one so that none is -inf."""
    counts = np.asarray(token_counts_V, np.float64) + 1.0
    return np.log(counts / counts.sum()).astype(np.float32)


def evaluate_workdir(
    directory: epath.PathLike, data: str = "", max_sequences: int | None = None
) -> dict[str, Any]:
    """Evaluates the newest checkpoint of a work directory.

    Args:
      directory: The work directory.
      data: Globs of other text; empty: the run's own held-out documents.
      max_sequences: Overrides `config.eval.max_sequences`.

    Returns:
      What `evaluate` returns, and `step`.
    """
    config = workdir.load_config(directory)
    if workdir.is_finetuning(config):
        raise UserError(
            f"{directory} holds a fine-tuned model, which predicts no masked words; its scores "
            f"are in {epath.Path(directory) / workdir.RESULTS}"
        )
    if max_sequences is not None:
        config.eval.max_sequences = max_sequences
    tokenizer, token_counts_V = workdir.load_vocabulary(directory)
    # On whatever devices there are here, not those that it was trained on.
    config.sharding, config.sharding_rules = "dp", ()
    config.mesh.update(data=-1, fsdp=1, model=1)
    trainer = Trainer.from_config(config)
    checkpointer = Checkpointer(epath.Path(directory) / workdir.CHECKPOINTS, read_only=True)
    restored = checkpointer.restore_params(trainer.abstract_state().params)
    checkpointer.close()
    if restored is None:
        raise UserError(f"{directory} has no checkpoint yet")
    step, params = restored
    with _store_to_evaluate(directory, config, tokenizer, data) as store:
        with Progress("evaluate", config.eval.max_sequences or None, "sequences") as progress:
            results = evaluate(
                trainer,
                params,
                trainer.stages[-1],
                store=store,
                tokenizer=tokenizer,
                # Of converted weights the training text is not known: the baseline then
                # has the advantage of the frequencies in the very text it is scored on.
                token_counts_V=store.token_counts if token_counts_V is None else token_counts_V,
                config=config,
                advance=progress.advance,
            )
    return {"step": step, **results}


def results_table(title: str, results: dict[str, float]) -> Table:
    """The results, and beside them what knows no context: unigrams, the commoner label."""
    table = Table(title=title, title_justify="left")
    for name, justify in (("", "left"), ("this model", "right"), ("baseline", "right")):
        table.add_column(name, justify=justify)
    table.add_row(
        "masked-LM loss (nats)", f"{results['mlm_loss']:.3f}", f"{results['unigram_mlm_loss']:.3f}"
    )
    table.add_row(
        "masked-LM accuracy",
        f"{results['mlm_accuracy']:.1%}",
        f"{results['unigram_mlm_accuracy']:.1%}",
    )
    table.add_row(
        "masked-LM perplexity",
        f"{results['mlm_perplexity']:.1f}",
        f"{math.exp(results['unigram_mlm_loss']):.1f}",
    )
    table.add_row(
        "next-sentence accuracy",
        f"{results['nsp_accuracy']:.1%}",
        f"{results['majority_nsp_accuracy']:.1%}",
    )
    table.add_row("next-sentence loss (nats)", f"{results['nsp_loss']:.3f}", "")
    table.add_row("sequences", f"{results['num_sequences']:,}", "")
    return table


def _averages(totals: dict[str, float]) -> dict[str, float]:
    # A sequence of few tokens whose words are all too long can have no masked
    # token; a whole evaluation without any is not worth a special case.
    weight = max(totals["mlm_weight"], 1.0)
    sequences = totals["num_sequences"]
    mlm_loss = totals["mlm_loss"] / weight
    random_share = totals["random_next"] / sequences
    return {
        "mlm_loss": mlm_loss,
        "mlm_accuracy": totals["mlm_correct"] / weight,
        # Past exp(700) a float overflows; such a model predicts nothing anyway.
        "mlm_perplexity": math.exp(min(mlm_loss, 700.0)),
        "nsp_loss": totals["nsp_loss"] / sequences,
        "nsp_accuracy": totals["nsp_correct"] / sequences,
        "majority_nsp_accuracy": max(random_share, 1 - random_share),
        "unigram_mlm_loss": totals["unigram_mlm_loss"] / weight,
        "unigram_mlm_accuracy": totals["unigram_mlm_correct"] / weight,
        "num_sequences": int(sequences),
    }


@contextlib.contextmanager
def _store_to_evaluate(
    directory: epath.PathLike, config: ConfigDict, tokenizer: Tokenizer, data: str
) -> Iterator[TokenStore]:
    if not data:
        split = workdir.store_directory(directory, config) / "heldout"
        if not split.exists():
            raise UserError(
                f"{split} is not there: the run held no documents out; give --data=GLOB"
            )
        yield TokenStore(split)
        return
    with contextlib.ExitStack() as stack:

        def tokenized() -> str:
            # Inside the work directory, where every host of a run can read it.
            scratch = epath.Path(directory) / f"evaluate_{uuid.uuid4().hex}"
            stack.callback(files.remove_directory, scratch)
            options = config.data.copy_and_resolve_references()
            options.unlock()
            options.input, options.format = (data,), "auto"
            split = scratch / "split"
            tokenize_corpus(options, tokenizer, split)
            return str(split)

        yield TokenStore(multihost.run_on_process_zero(tokenized))


def define_flags() -> None:
    """Called by the command line only: other verbs import this module."""
    flags.DEFINE_string("workdir", "", "Work directory of the run to evaluate.")
    flags.DEFINE_string("data", "", "Globs of text to score; by default the held-out documents.")
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_integer(
        "max_sequences", None, "Sequences at the most, 0 for all; by default the config's."
    )
    cli.define_host_flags()


def main(_) -> None:
    args = flags.FLAGS
    if not args.workdir:
        raise UserError("--workdir is missing: the work directory of the run to evaluate")
    for name in ("data", "output"):
        files.open_path(args[name].value, f"--{name}")
    with cli.joined_hosts():
        results = evaluate_workdir(args.workdir, args.data, args.max_sequences)
        source = args.data or "held-out documents"
        Console().print(results_table(f"Step {results['step']:,} on {source}", results))
        if args.output and multihost.is_first():
            files.write_json(args.output, results)
            print(f"written to {args.output}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
