"""Text in, batches out: corpus readers, sentences, the token store, pairs, masks, pipeline."""
