"""What `lower` writes in other words, so that TensorRT's parser takes it and computes the same."""
