// Normalization of rows, with the residual sum before it; see
// ops/normalization/README.md.
//
// B problems, N rows of a problem, D numbers of a row.

#ifndef TOKUMX_NATIVE_NORMALIZATION_H_
#define TOKUMX_NATIVE_NORMALIZATION_H_

#include <cstddef>

#include "dtype.h"
#include "workers.h"

namespace tokumx {

// s = x + residual, rounded to x's type, or x.
// out = (s - mean) * rstd * scale + bias,  rstd = 1 / sqrt(mean((s - mean)^2) + eps)
struct RowNorm {
  size_t problems, rows, columns;
  DType dtype;            // of x, residual, out and total
  const void* x;          // [B, N, D]
  const void* residual;   // the same, or null
  const float* scale;     // [B or 1, D], or null
  size_t scale_problem;   // numbers from one problem to the next; 0 if all share it
  const float* bias;      // [B or 1, D], or null
  size_t bias_problem;
  float eps;
  bool is_centered;       // else the mean is 0
  void* out;              // [B, N, D]
  void* total;            // the same, s; null without a residual
  float* rstd;            // [B, N]
  float* mean;            // [B, N]; null unless centered
};

struct RowNormBackward {
  size_t problems, rows, columns;
  DType dtype;             // of total, ct, ct_total and dx
  const void* total;       // [B, N, D], s
  const void* ct;          // [B, N, D], of out
  const void* ct_total;    // [B, N, D], or null
  const float* scale;      // [B or 1, D], or null
  size_t scale_problem;
  const float* rstd;       // [B, N]
  const float* mean;       // [B, N]; null unless centered
  void* dx;                // [B, N, D]
  float* d_scale;          // [B, D], or null
  float* d_bias;           // [B, D], or null
};

// Bytes of scratch memory that a backward needs with so many threads.
size_t RowNormBackwardScratch(size_t problems, size_t rows, size_t columns,
                              size_t threads);

void RunRowNorm(const RowNorm& call, Workers& workers);
// `scratch` is aligned to 64 bytes.
void RunRowNormBackward(const RowNormBackward& call, Workers& workers, void* scratch);

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_NORMALIZATION_H_
