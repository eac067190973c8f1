// What TensorRT's headers need of CUDA's, where those are not: the names of two handles.
#pragma once
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
