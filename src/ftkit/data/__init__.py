"""The data path: rows -> Conversation or Segments -> Example -> Pack -> Batch. Sees a tokenizer, never the model."""
