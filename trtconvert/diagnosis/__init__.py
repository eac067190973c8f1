"""What stands between a model and its engine: every fault with its node, its cause and the way out."""
