// The calls into the CUDA runtime that the exported C++ example makes.
#pragma once
#include <NvInferRuntime.h>

enum cudaError_t { cudaSuccess };
cudaError_t cudaMalloc(void** buffer, size_t bytes);
cudaError_t cudaMemset(void* buffer, int value, size_t bytes);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
