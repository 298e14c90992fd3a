"""Records what `generate` of transformers finds in tables of logits and with a small BART.

    pip install torch==2.13.0 'transformers<5'
    python -m tests.golden.record_generation
    pip install 'transformers>=5'
    python -m tests.golden.record_generation --check

tests/models/test_generation.py compares bert_jax with the files. Recorded with torch 2.13.0 on a
CPU and transformers 4.57.6; with 5.24.0, --check finds the same tokens.
"""

import json
import sys

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from tests.golden.inputs import FOLDER

START, PAD, END, VOCAB_SIZE, ROWS, LENGTH = 2, 1, 2, 11, 6, 9
SPECIAL = {"decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": END}
# The settings of each search, in the names of GenerationConfig.
SEARCHES = [
    {"num_beams": num_beams} | options
    for num_beams in (1, 4)
    for options in (
        {},
        {"min_length": 6},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3, "min_length": 4},
        {"forced_bos_token_id": 0, "forced_eos_token_id": END},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2, "no_repeat_ngram_size": 4},
    )
] + [
    {"num_beams": 4, "length_penalty": penalty, "early_stopping": stopping} | options
    for penalty in (-1.0, 0.7, 2.0)
    for stopping in (False, True, "never")
    for options in (
        {},
        # The settings of the BART that summarizes news.
        {
            "min_length": 4,
            "no_repeat_ngram_size": 3,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": END,
        },
    )
]


class TableConfig(PretrainedConfig):
    model_type = "table"


class Table(PreTrainedModel, GenerationMixin):
    """A decoder whose logits depend on the row, the position and the last token."""

    config_class = TableConfig
    _supports_cache_class = False

    def __init__(self, config, logits):
        super().__init__(config)
        self.anything = torch.nn.Parameter(torch.zeros(1))
        self.logits = logits
        self.post_init()

    def forward(self, input_ids, row=None, **_):
        position = input_ids.shape[1] - 1
        return CausalLMOutput(logits=self.logits[row, position, input_ids[:, -1]][:, None])

    def prepare_inputs_for_generation(self, input_ids, row=None, **_):
        return {"input_ids": input_ids, "row": row}


def searched(logits: np.ndarray, search: dict) -> np.ndarray:
    """Returns the tokens that transformers finds, int32 [ROWS, T], with padding after the end."""
    config = TableConfig(vocab_size=VOCAB_SIZE, pad_token_id=PAD, eos_token_id=END)
    model = Table(config, torch.tensor(logits))
    found = model.generate(
        torch.full((ROWS, 1), START),
        row=torch.arange(ROWS),
        do_sample=False,
        use_cache=False,
        **{"max_new_tokens": LENGTH} | search,
    )
    return padded(found[:, 1:].numpy(), search.get("max_new_tokens", LENGTH))


def padded(ids: np.ndarray, length: int) -> np.ndarray:
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=PAD).astype(np.int32)


def tables() -> np.ndarray:
    """Returns float32 [ROWS, LENGTH, VOCAB_SIZE, VOCAB_SIZE], in which rows end early and late."""
    rng = np.random.RandomState(0)
    logits = rng.normal(size=(ROWS, LENGTH, VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
    logits[..., END] += np.linspace(-3, 2, ROWS, dtype=np.float32)[:, None, None]
    return logits


def main() -> None:
    logits = tables()
    found = {f"tokens/{i}": searched(logits, search) for i, search in enumerate(SEARCHES)}
    path = FOLDER / "generation.npz"
    if "--check" in sys.argv:
        golden = np.load(path)
        for name, tokens in found.items():
            np.testing.assert_array_equal(golden[name], tokens, SEARCHES[int(name[7:])])
        print(f"all {len(found)} searches find the same")
        return
    np.savez_compressed(path, logits=logits, searches=np.array(json.dumps(SEARCHES)), **found)
    ends = [np.mean([np.sum(t != PAD) for t in x]) for x in found.values()]
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB; {np.round(ends, 1)}")


if __name__ == "__main__":
    main()
