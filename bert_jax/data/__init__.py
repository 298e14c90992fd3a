"""Turns text into batches: corpora, sentences, the token store, pairs, masks, pipeline."""
