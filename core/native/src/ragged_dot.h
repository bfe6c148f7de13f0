// Products of rows with the matrix of their group, and sums of a group's outer
// products; see ops/ragged_dot/README.md.
//
// B problems, M rows, G groups, K and N widths.

#ifndef TOKUMX_NATIVE_RAGGED_DOT_H_
#define TOKUMX_NATIVE_RAGGED_DOT_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "workers.h"

namespace tokumx {

// An array of f32, bf16 or f16, [B or 1, ...].
struct RaggedOperand {
  const void* data;
  DType dtype;
  size_t problem;  // numbers from one problem to the next; 0 if all share it
};

// Group g has the rows [starts[g], ends[g]), clamped when read; [B or 1, G]. No two
// groups of a problem have a row in common.
struct GroupRows {
  const int32_t *starts, *ends;
  size_t problem;
};

// out[m] = lhs[m] @ rhs[g] + bias[g] for row m of group g, and 0 for other rows.
struct RaggedDot {
  size_t problems, rows, groups, depth, columns;
  RaggedOperand lhs;    // [B or 1, M, depth]
  RaggedOperand rhs;    // [B or 1, G, depth, columns]
  bool is_transposed;   // rhs is [B or 1, G, columns, depth]
  RaggedOperand bias;   // [B or 1, G, columns] f32, or null
  GroupRows groups_rows;
  void* out;            // [B, M, columns]
  DType out_dtype;
};

// out[g] = the sum of outer(lhs[m], rhs[m]) over the rows m of group g.
struct RaggedContractingDot {
  size_t problems, rows, groups, lhs_columns, rhs_columns;
  RaggedOperand lhs;  // [B or 1, M, K]
  RaggedOperand rhs;  // [B or 1, M, N]
  GroupRows groups_rows;
  void* out;          // [B, G, K, N]
  DType out_dtype;
};

// Bytes of scratch memory that a call needs with so many threads.
size_t RaggedDotScratch(size_t problems, size_t rows, size_t depth, size_t columns,
                        size_t threads);
size_t RaggedContractingScratch(size_t rows, size_t rhs_columns, size_t threads);

// `scratch` is aligned to 64 bytes.
void RunRaggedDot(const RaggedDot& call, Workers& workers, void* scratch);
void RunRaggedContractingDot(const RaggedContractingDot& call, Workers& workers,
                             void* scratch);

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_RAGGED_DOT_H_
