"""Precision: a model's floats as float16, bfloat16 or float32, and which nodes stay in float32 by the range of their values."""
