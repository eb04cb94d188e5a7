"""Objectives: (net, Batch) -> loss sum, number of target tokens."""
