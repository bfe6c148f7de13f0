// Element types that kernels read and write; all of them compute in float.

#ifndef TOKUMX_NATIVE_DTYPE_H_
#define TOKUMX_NATIVE_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace tokumx {

enum class DType : int32_t {
  kF32 = 0,
  kBF16 = 1,
  kF16 = 2,
  kI8 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
};

inline size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    default:
      return 1;
  }
}

inline size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

inline size_t CeilDiv(size_t n, size_t unit) { return (n + unit - 1) / unit; }

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_DTYPE_H_
