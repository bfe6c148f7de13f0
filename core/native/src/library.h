// The library as a whole: which instruction sets it has, and which one it uses.

#ifndef TOKUMX_NATIVE_LIBRARY_H_
#define TOKUMX_NATIVE_LIBRARY_H_

#include <cstdint>

#define TOKUMX_EXPORT extern "C" __attribute__((visibility("default")))

// major * 1000 + minor of the XLA FFI headers that this was built with.
TOKUMX_EXPORT int32_t tokumx_xla_ffi_version();

// Names of the instruction sets that are compiled in and that this processor
// has, best first, separated by spaces: "AVX3 AVX2 SSE2".
TOKUMX_EXPORT const char* tokumx_instruction_sets();

// Uses only the named set and those below it, from the next call on; an empty
// name means the best. Returns 0, or -1 for a name that is not among the above.
TOKUMX_EXPORT int32_t tokumx_use_instruction_set(const char* name);

#endif  // TOKUMX_NATIVE_LIBRARY_H_
