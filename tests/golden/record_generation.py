"""Records what `generate` of transformers finds in tables of logits and with a small BART.

The logits of two fine-tuned classes with the same encoder and decoder are recorded too.

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
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
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

# As far as possible, no two sizes are equal.
BART = {
    "vocab_size": 31,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 21,
    "decoder_start_token_id": START,
}
NEWS = {"min_length": 9, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0}
BART_SEARCHES = [
    {"max_new_tokens": 17, "num_beams": 1},
    {"max_new_tokens": 17, "num_beams": 1} | NEWS,
    {"max_new_tokens": 17, "num_beams": 4},
    {"max_new_tokens": 17, "num_beams": 4, "length_penalty": 2.0, "early_stopping": True} | NEWS,
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


def make_bart() -> BartForConditionalGeneration:
    """Returns a BART with random parameters, the same in all versions of transformers."""
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**BART, attn_implementation="eager")).eval()
    # With these parameters, the rows end at different lengths.
    rng = np.random.RandomState(4)
    for name, parameter in sorted(model.named_parameters()):
        values = rng.normal(size=parameter.shape) * 0.25
        values += 1 if name.endswith("norm.weight") or "layernorm" in name else 0
        with torch.no_grad():
            parameter.copy_(torch.tensor(values))
    return model


def bart_inputs() -> dict[str, np.ndarray]:
    """Returns rows of unequal lengths, padded."""
    rng = np.random.RandomState(2)
    lengths = np.array([13, 5, 9, 2, 12])
    mask = (np.arange(13) < lengths[:, None]).astype(np.int32)
    ids = rng.randint(3, BART["vocab_size"], mask.shape)
    ids[:, 0] = 0
    ids[np.arange(len(lengths)), lengths - 1] = END
    return {"input_ids": np.where(mask, ids, PAD).astype(np.int32), "attention_mask": mask}


def generated(model: BartForConditionalGeneration, inputs: dict, search: dict) -> np.ndarray:
    """Returns the tokens that a BART generates, int32 [B, T], with padding after the end."""
    tensors = {name: torch.tensor(array).long() for name, array in inputs.items()}
    found = model.generate(**tensors, do_sample=False, **search)
    return padded(found[:, 1:].numpy(), search["max_new_tokens"])


def task_logits(backbone: BartForConditionalGeneration, inputs: dict) -> dict[str, np.ndarray]:
    """Returns the weights of two task heads on an encoder and decoder, and their logits."""
    tensors = {name: torch.tensor(array).long() for name, array in inputs.items()}
    recorded, rng = {}, np.random.RandomState(5)
    for make_model, num_labels in (
        (BartForSequenceClassification, 3),
        (BartForQuestionAnswering, 2),
    ):
        config = BartConfig(**BART, num_labels=num_labels, attn_implementation="eager")
        model = make_model(config).eval()
        model.model.load_state_dict(backbone.model.state_dict())
        prefix = make_model.__name__
        for name, parameter in sorted(model.named_parameters()):
            if not name.startswith("model."):
                with torch.no_grad():
                    parameter.copy_(torch.tensor(rng.normal(size=parameter.shape)))
                recorded[f"{prefix}/weights/{name}"] = parameter.detach().numpy()
        with torch.no_grad():
            outputs = model(**tensors)
        for name in ("logits", "start_logits", "end_logits"):
            if name in outputs:
                recorded[f"{prefix}/{name}"] = outputs[name].numpy()
    return recorded


def main() -> None:
    logits, model, inputs = tables(), make_bart(), bart_inputs()
    found = {f"tokens/{i}": searched(logits, search) for i, search in enumerate(SEARCHES)}
    found |= {
        f"bart_tokens/{i}": generated(model, inputs, search)
        for i, search in enumerate(BART_SEARCHES)
    }
    path = FOLDER / "generation.npz"
    if "--check" in sys.argv:
        golden = np.load(path)
        for name, tokens in found.items():
            np.testing.assert_array_equal(golden[name], tokens, name)
        print(f"all {len(found)} searches find the same")
        return
    weights = {f"bart_weights/{name}": p.detach().numpy() for name, p in model.named_parameters()}
    described = {"searches": SEARCHES, "bart": BART, "bart_searches": BART_SEARCHES}
    np.savez_compressed(
        path,
        logits=logits,
        **{name: np.array(json.dumps(value)) for name, value in described.items()},
        **{f"bart_inputs/{name}": array for name, array in inputs.items()},
        **weights,
        **task_logits(model, inputs),
        **found,
    )
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    for name, tokens in found.items():
        print(name, "lengths", np.sum(tokens != PAD, axis=1))


if __name__ == "__main__":
    main()
