// What NCCL's socket transport needs of CUDA, where there is none: one device, and no GPU memory.
#pragma once

#include <cstddef>

using std::size_t;  // as CUDA's headers leave it
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorNotSupported = 801 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum { cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };

inline const char* cudaGetErrorString(cudaError_t) { return "this build has no CUDA"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaErrorNotSupported; }
template <typename T>
cudaError_t cudaHostGetDevicePointer(T**, void*, unsigned) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaHostUnregister(void*) { return cudaErrorNotSupported; }
