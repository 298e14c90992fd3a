"""BERT-mini (L4 H256) on two CPU cores, in an hour or two.

Paper: Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962), for the size. The
recipe is ours; comments mark where it differs from the paper's.

    python -m bert_jax.main --config=configs/mini_laptop.py --workdir=DIR \\
        --config.data.input='TEXT/*.txt'

Hardware: two CPU cores and 3 GB of memory (160 steps of both stages peaked at 2.1 GB).
Expected: on 109 MB of books, a held-out masked-LM loss of 3.99 at length 128 (unigram baseline
6.54) and a next-sentence accuracy of 78.3 %. Reproduced with this code: 65 minutes on two cores,
including the preparation of the text. With --config.sinusoidal_positions=0.17 the same number of
steps reaches 3.79 and 77.4 %, but the model is worth less after fine-tuning (docs/finetuning.md).
"""

from bert_jax.config import default_config, refuse_argument, stage


def get_config(arg: str = ""):
    refuse_argument(arg)
    c = default_config()
    c.dtype = "float32"
    # Smaller than BERT's vocabulary, whose softmax would take a third of each step.
    c.model.vocab_size = 16384
    c.model.num_hidden_layers = 4
    c.model.hidden_size = 256
    c.model.num_attention_heads = 4
    c.model.intermediate_size = 1024
    # 0.02 suits a width of 768.
    c.model.initializer_range = 0.04
    # The run makes about one pass over 100 MB of text, so it cannot overfit.
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    # Many small steps learn more in the same time than few large ones.
    c.train.num_steps = 12000
    c.train.batch_size = 32
    # The second stage has a quarter of the steps, not a tenth, which ended at a loss of 4.9. Only
    # this stage learns the positions from 64 on, and its last steps have a rate near zero.
    c.train.stages = (
        stage(fraction=0.75, max_seq_length=64, max_predictions_per_seq=10),
        stage(fraction=0.25, max_seq_length=128, max_predictions_per_seq=20),
    )
    c.optimizer.bias_correction = True
    c.schedule.peak_learning_rate = 1e-3
    c.schedule.warmup_steps = 500.0
    c.checkpoint.every_steps = 1000
    c.eval.every_steps = 3000
    c.eval.max_sequences = 1024
    c.log.every_steps = 100
    c.lock()
    return c
