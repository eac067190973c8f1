// y = GELU((x - mean) / sqrt(var + epsilon) * scale + bias).
#include "layer_norm.cuh"
