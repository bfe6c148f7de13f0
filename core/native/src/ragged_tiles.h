// Sizes of the blocks of grouped products. Nothing here depends on the instruction
// set; buffers are padded to the widest panel, 32 columns.

#ifndef TOKUMX_NATIVE_RAGGED_TILES_H_
#define TOKUMX_NATIVE_RAGGED_TILES_H_

#include <algorithm>
#include <cstddef>

#include "arena.h"
#include "ragged_dot.h"

namespace tokumx {

// Partial sums of so many terms: a block of rows stays in the L1 cache, and sums
// keep the accuracy of a blocked product.
constexpr size_t kDepthChunk = 512;
// Packed columns of a matrix take at most so many floats, half of a small L2 cache.
constexpr size_t kPanelFloats = 128 * 1024;
constexpr size_t kWidestPanel = 32;
// So few rows read the matrix where it lies.
constexpr size_t kFewRows = 4;
// Rows of the result of a sum of outer products that are computed together: a
// multiple of the micro kernel's rows on every instruction set.
constexpr size_t kBlockColumns = 48;

// The rows of one group, never outside the rows there are.
struct RowRange {
  size_t first, count;

  RowRange(const GroupRows& rows, size_t problem, size_t group, size_t all) {
    const size_t at = problem * rows.problem + group;
    const auto bound = [all](int32_t row) {
      return std::min<size_t>(std::max(row, 0), all);
    };
    first = bound(rows.starts[at]);
    count = std::max(bound(rows.ends[at]), first) - first;
  }
};

// Columns of a task: as many as fit the cache with `depth` rows, and few enough that
// every thread gets two tasks of a group.
inline size_t ColumnsOfTask(size_t depth, size_t columns, size_t least,
                            size_t threads) {
  const size_t fit = kPanelFloats / std::max<size_t>(depth, 1);
  const size_t share = CeilDiv(columns, 2 * threads);
  const size_t wanted = std::min({fit, share, size_t{256}});
  return std::max(wanted / kWidestPanel * kWidestPanel, least);
}

struct RaggedDotTiles {
  size_t block_columns, chunks;
  size_t few_chunks;  // that a task of few rows takes together
  size_t block_rows;
  size_t row_stride, acc_stride;
  size_t panel_floats, row_floats, acc_floats;

  RaggedDotTiles(size_t depth, size_t columns, size_t threads) {
    block_columns = ColumnsOfTask(depth, columns, kWidestPanel, threads);
    chunks = CeilDiv(columns, block_columns);
    few_chunks = std::clamp<size_t>(chunks / (2 * threads), 1, 8);
    block_rows = std::clamp<size_t>(16384 / std::max<size_t>(depth, 1), 1, 4) * 12;
    // Rows that are a power of two apart would share the lines of a cache.
    row_stride = RoundUp(depth, 16) + 16;
    acc_stride = few_chunks * block_columns;
    panel_floats = RoundUp(depth * block_columns, 16);
    row_floats = block_rows * row_stride;
    acc_floats = block_rows * acc_stride;
  }

  size_t local_floats() const { return panel_floats + row_floats + acc_floats; }
};

struct ContractingTiles {
  size_t block_columns, chunks;
  size_t panel_floats, block_floats, acc_floats;

  ContractingTiles(size_t rows, size_t columns, size_t threads) {
    block_columns = ColumnsOfTask(rows, columns, 2 * kWidestPanel, threads);
    chunks = CeilDiv(columns, block_columns);
    panel_floats = RoundUp(rows * block_columns, 16);
    block_floats = std::min(kDepthChunk, RoundUp(rows, 16)) * kBlockColumns;
    acc_floats = kBlockColumns * block_columns;
  }

  size_t local_floats() const { return panel_floats + block_floats + acc_floats; }
};

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_RAGGED_TILES_H_
