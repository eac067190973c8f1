"""Sizes and values that TensorRT wants to know before it builds: given, found or refused."""
