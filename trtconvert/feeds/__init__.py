"""What a model is fed with to prove an engine: random data by role, the user's files, or the user's script."""
