"""Shows rows as the model gets them: their pieces, segments, labels and masks.

    python -m bert_jax.show_batch --config=configs/tiny.py --config.data.input='texts/*.txt'
    python -m bert_jax.show_batch --model=DIR --step=1000

The first command prepares the corpus in a temporary directory, unless `config.data.store` names a
token store. The second shows a batch that the run in DIR trains on.
"""

import tempfile
from collections.abc import Mapping

import numpy as np
from absl import flags
from ml_collections import ConfigDict
from rich.table import Table
from rich.text import Text

from bert_jax.base.batch import weights_name
from bert_jax.base.progress import empty_table, terminal
from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.open_input import open_run_input
from bert_jax.config import cli, validate
from bert_jax.config.command_line import ConfigSource, config_source
from bert_jax.pretraining.first_state import copy_vocabulary
from bert_jax.pretraining.input import stream_spec
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.stages import resolve_stages, stage_of

STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold green"}


def read_batch(
    config: ConfigDict, step: int, directory: str = "", source: ConfigSource | None = None
) -> tuple[dict[str, np.ndarray], int, Tokenizer]:
    """Makes the global batch of a training step.

    Args:
      directory: The work directory of the token store. If empty, the store is config.data.store,
        or is prepared in a temporary directory.

    Returns:
      The arrays of the batch by name, the number of its first example, and the tokenizer.
    """
    source = source or ConfigSource("the given config", config)
    with tempfile.TemporaryDirectory(prefix="bert_jax_show_batch_") as scratch:
        config, pretrained, teacher = complete_config(config, directory or scratch, source)
        copy_vocabulary(config, directory or scratch, pretrained or teacher)
        stage = stage_of(resolve_stages(config), step)
        run_input = open_run_input(config, directory or scratch)
        spec, place = stream_spec(config, stage), step - 1 - stage.first_step
        (batch,) = run_input.stream(spec).batches(place, 1)
        return batch, place * spec.batch_size, run_input.tokenizer


def row_lines(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> list[Text]:
    """Formats a row, with a line for each segment of each sequence; padding is left out.

    A token to be predicted is shown as ORIGINAL→INPUT. A dot joins the pieces of a word. If the
    batch has the targets of a decoder, the last line is the row's.
    """
    originals = {}
    if "masked_lm_positions" in batch:
        counted = batch["masked_lm_weights"][row] > 0
        positions, ids = (batch[f"masked_lm_{name}"][row][counted] for name in ("positions", "ids"))
        originals = dict(zip(positions.tolist(), ids.tolist(), strict=True))
    if "original_ids" in batch:
        ids_L = batch["original_ids"][row]
        changed = np.flatnonzero(batch["input_ids"][row] != ids_L).tolist()
        originals = dict(zip(changed, ids_L[changed].tolist(), strict=True))
    lines: list[Text] = []
    length = num_tokens(batch, row)
    fields = (batch[name][row, :length].tolist() for name in ("attention_mask", "token_type_ids"))
    segments = list(zip(*fields, strict=True))
    begins_word_L = tokenizer.begins_word(batch["input_ids"][row, :length])
    for position, token in enumerate(batch["input_ids"][row, :length].tolist()):
        if position == 0 or segments[position] != segments[position - 1]:
            sequence, segment = segments[position]
            of_sequence = f"of pair {sequence} " if "cls_positions" in batch else ""
            lines.append(Text(f"  segment {segment} {of_sequence}"))
        lines[-1].append(" " if begins_word_L[position] else "·")
        piece = tokenizer.piece_text(token)
        if position in originals:
            original = originals[position]
            style = STYLES[_kind(token, original, tokenizer)]
            lines[-1].append(f"{tokenizer.piece_text(original)}→{piece}", style)
        else:
            lines[-1].append(piece, "dim" if token in tokenizer.special_ids else "")
    if "labels" in batch:
        lines.append(Text("  target "))
        for token in batch["labels"][row][batch["decoder_attention_mask"][row] > 0].tolist():
            lines[-1].append(" " if tokenizer.is_word_start_V[token] else "·")
            lines[-1].append(tokenizer.piece_text(token))
    return lines


def batch_table(batch: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> Table:
    table = empty_table("", "in the global batch", "")
    mask = batch["attention_mask"] > 0
    table.add_row("sequences x tokens", f"{mask.shape[0]:,} x {mask.shape[1]:,}")
    table.add_row("padding", f"{1 - mask.mean():.1%}")
    unknown = (batch["input_ids"] == tokenizer.unk_id) & mask
    table.add_row(tokenizer.special_tokens.unk, f"{unknown.sum() / mask.sum():.2%}")
    if "masked_lm_positions" in batch:
        counted = batch["masked_lm_weights"] > 0
        rows = np.nonzero(counted)[0]
        tokens = batch["input_ids"][rows, batch["masked_lm_positions"][counted]]
        originals = batch["masked_lm_ids"][counted]
        table.add_row("predicted tokens", f"{counted.sum() / mask.sum():.1%}")
        kinds = [_kind(*pair, tokenizer) for pair in zip(tokens, originals, strict=True)]
        for kind in STYLES:
            fraction = kinds.count(kind) / max(len(kinds), 1)
            table.add_row(f"  {kind}", f"{fraction:.1%}")
        table.add_row("rows at the limit of predictions", f"{counted.all(axis=1).mean():.1%}")
    if "original_ids" in batch:
        masked = batch["input_ids"] != batch["original_ids"]
        table.add_row("masked tokens", f"{masked.sum() / (batch['mask_weights'] > 0).sum():.1%}")
    for name, labels in _labels(batch).items():
        values, counts = np.unique(np.concatenate(labels), return_counts=True)
        for label, count in zip(values, counts, strict=True):
            table.add_row(f"{name} {label}", f"{count / sum(map(len, labels)):.1%}")
    return table


def _labels(batch: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Returns the values of each row in the fields that have one for each row or pair."""
    labels = {name: list(values[:, None]) for name, values in batch.items() if values.ndim == 1}
    for name in batch:
        if weights_name(name) in batch:
            rows = zip(batch[name], batch[weights_name(name)] > 0, strict=True)
            labels[name] = [values_P[is_pair_P] for values_P, is_pair_P in rows]
    return labels


def num_tokens(batch: Mapping[str, np.ndarray], row: int) -> int:
    return int((batch["attention_mask"][row] > 0).sum())


def _kind(token: int, original: int, tokenizer: Tokenizer) -> str:
    """Returns what happened to a token that is to be predicted: a key of STYLES."""
    if token == tokenizer.mask_id:
        return "masked"
    return "kept" if token == original else "random"


def _print_rows(
    batch: Mapping[str, np.ndarray], first: int, rows: int, tokenizer: Tokenizer
) -> None:
    console, labels = terminal(), _labels(batch)
    for row in range(min(rows, len(batch["input_ids"]))):
        values = "".join(
            f", {name} {' '.join(map(str, values[row]))}" for name, values in labels.items()
        )
        tokens = num_tokens(batch, row)
        console.print(f"example {first + row:,}: {tokens} tokens{values}", style="bold")
        for line in row_lines(batch, row, tokenizer):
            console.print(line, soft_wrap=not console.is_terminal)
    legend = Text("\nORIGINAL→INPUT is to be predicted; a dot joins pieces of a word. Colors: ")
    for kind, style in STYLES.items():
        legend.append(f"{kind} ", style)
    if batch.keys() & {"masked_lm_positions", "original_ids"}:
        console.print(legend)
    console.print(batch_table(batch, tokenizer))


def define_flags() -> None:
    cli.define_config_flag()
    cli.define_model_flag("workdir", "Work directory of a run.", is_required=False)
    flags.DEFINE_integer("step", 1, "The training step, from 1.", lower_bound=1)
    flags.DEFINE_integer("rows", 4, "Rows to show.", lower_bound=0)


def main(_) -> None:
    args = flags.FLAGS
    validate(args.config, is_given=True)
    batch, first, tokenizer = read_batch(args.config, args.step, args.model or "", config_source())
    _print_rows(batch, first, args.rows, tokenizer)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
