"""Inference with a trained BERT: masked words, next sentences, features, attention, tasks."""

# The features of a text: the hidden state of the first token, the mean over all tokens, or the
# states of all tokens.
POOLINGS = ("cls", "mean", "tokens")
