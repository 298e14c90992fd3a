"""BERT-mini (L4 H256) on two CPU cores, in an hour or two.

Source: Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962), for the
size. The recipe is ours: what differs from the paper's is marked.

    python -m bert_jax.main --config=configs/mini_laptop.py --workdir=DIR \\
        --config.data.input='TEXT/*.txt'

Hardware meant: two CPU cores and 3 GB of memory (2.1 GB at the most in 160 steps of both
stages).
Expected: on 109 MB of books, held-out masked-LM loss 3.99 at length 128 (unigram baseline 6.54),
next-sentence accuracy 78.3 % (reproduced: 65 minutes on two cores, preparing the text included).
--config.sinusoidal_positions=0.17 has 3.79 and 77.4 % in as many steps, but is worth less once it
is fine-tuned (docs/finetuning.md).
"""

from bert_jax.config import default_config, refuse_argument, stage


def get_config(arg: str = ""):
    refuse_argument(arg)
    c = default_config()
    c.dtype = "float32"
    # A smaller vocabulary than BERT's: a third of each step would be its softmax.
    c.model.vocab_size = 16384
    c.model.num_hidden_layers = 4
    c.model.hidden_size = 256
    c.model.num_attention_heads = 4
    c.model.intermediate_size = 1024
    # 0.02 suits a width of 768.
    c.model.initializer_range = 0.04
    # About one pass over 100 MB of text: nothing to overfit.
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    # Many small steps learn more in the same time than few large ones.
    c.train.num_steps = 12000
    c.train.batch_size = 32
    # A quarter in the second stage, not a tenth: the positions from 64 on are learned there alone,
    # and at its end the rate is next to zero (a tenth came to a loss of 4.9).
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
