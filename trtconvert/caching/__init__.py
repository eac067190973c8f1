"""Engines kept for the next time: what makes two builds the same, locks, and the store."""
