// SPDX-License-Identifier: BSD-3-Clause

// The functions of NVRTC that LibTorch calls, without a compiler. Some CUDA kernels, such as those
// of complex numbers, are compiled when they are first called; the host computes them, so nothing
// is compiled. The driver counts their launches like all others.
#include <nvrtc.h>

namespace {

// The address stands for every program.
char program;

// The compiled code is never read.
constexpr size_t kNothingBytes = 1;

}  // namespace

nvrtcResult nvrtcCreateProgram(nvrtcProgram* created, const char* /*source*/, const char* /*name*/,
                               int /*count*/, const char* const* /*headers*/,
                               const char* const* /*names*/) {
  *created = reinterpret_cast<nvrtcProgram>(&program);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* destroyed) {
  *destroyed = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcAddNameExpression(nvrtcProgram, const char* /*expression*/) {
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram, int /*count*/, const char* const* /*options*/) {
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetLoweredName(nvrtcProgram, const char* name, const char** lowered) {
  *lowered = name;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* bytes) {
  *bytes = kNothingBytes;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t* bytes) {
  *bytes = kNothingBytes;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* bytes) {
  *bytes = kNothingBytes;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* code) {
  *code = 0;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram, char* code) {
  *code = 0;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  *log = 0;
  return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult /*result*/) {
  return "an error of the CUDA stand-in";
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
