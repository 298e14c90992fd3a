"""A trained model in memory (`bert.py`, `finetuned.py`), and what it does with texts."""

# The features of a text: the hidden state of the first token, the mean over all tokens, or the
# states of all tokens.
POOLINGS = ("cls", "mean", "tokens")
# The tokens that a step of writing keeps first.
ORDERS = ("confident", "random")
