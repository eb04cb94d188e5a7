"""Chat templates at work: a conversation -> its text and where each message stands in it."""
