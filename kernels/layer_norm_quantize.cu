// y = saturate(round(((x - mean) / sqrt(var + epsilon) * scale + bias) / y_scale)), int8.
#include "layer_norm.cuh"
