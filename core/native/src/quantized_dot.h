// Products of rows with a matrix stored in 8 or 4 bits; see
// ops/quantized_matmul/README.md.
//
// B problems, M rows, K inner size, N columns of the matrix.

#ifndef TOKUMX_NATIVE_QUANTIZED_DOT_H_
#define TOKUMX_NATIVE_QUANTIZED_DOT_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "workers.h"

namespace tokumx {

enum class QuantKind : int32_t {
  kI8 = 0,
  kI4 = 1,  // rows 2i and 2i + 1 share a byte, 2i in the low half
  kF8E4M3 = 2,
  kF8E5M2 = 3,
};

// w[k][n] = (values[k][n] - zero_points[k / group][n]) * scales[k / group][n]
struct QuantizedMatrix {
  size_t depth, columns;  // K, N
  size_t groups;          // K / group
  QuantKind kind;
  const uint8_t* values;  // [B or 1, K or K / 2, N]
  size_t values_problem;  // bytes from one problem to the next; 0 if all share it
  const float* scales;    // [B or 1, groups, N or 1]
  size_t scales_problem;
  bool has_column_scales;
  const int8_t* zero_points;  // as scales, or null
  size_t zero_problem;
};

// out = x w, or x w^T.
struct QuantizedDot {
  size_t problems, rows;
  const void* x;     // [B or 1, M, K], or [B or 1, M, N] if transposed
  DType x_dtype;
  size_t x_problem;
  QuantizedMatrix w;
  bool is_transposed;
  float* out;        // [B, M, N], or [B, M, K]
};

// Bytes of scratch memory that a call needs with so many threads.
size_t QuantizedDotScratch(size_t depth, size_t columns, size_t threads);

// `scratch` is aligned to 64 bytes.
void RunQuantizedDot(const QuantizedDot& call, Workers& workers, void* scratch);

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_QUANTIZED_DOT_H_
