"""Records the logits of two fine-tuned classes of transformers with a small BART.

    python -m benchmarks.golden.bart_heads

tests/interop/test_huggingface_heads.py compares bert_jax with the file.
"""

import json

import torch

from benchmarks.golden.models import load, make_model
from benchmarks.golden.recipe import save_arrays
from tests.golden.inputs import read_golden, section


def main() -> None:
    golden = read_golden("bart_heads")
    inputs = {name: torch.tensor(v).long() for name, v in section(golden, "inputs").items()}
    for task, num_labels in (("SequenceClassification", 3), ("QuestionAnswering", 2)):
        name = f"BartFor{task}"
        shape = json.loads(str(golden["config"])) | {"model_type": "bart", "num_labels": num_labels}
        model = make_model(shape, name)
        load(model, section(golden, "weights") | section(golden, f"{name}/weights"))
        with torch.no_grad():
            outputs = model(**inputs)
        for key in ("logits", "start_logits", "end_logits"):
            if key in outputs:
                golden[f"{name}/{key}"] = outputs[key].numpy()
    save_arrays("bart_heads", golden)


if __name__ == "__main__":
    main()
