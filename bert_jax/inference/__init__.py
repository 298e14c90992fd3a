"""What a trained BERT is asked: masked words, the next sentence, features, attention."""

# How a text's hidden states become its features: the first token's, the mean of all
# tokens', or every token's.
POOLINGS = ("cls", "mean", "tokens")
