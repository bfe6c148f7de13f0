// Grouped products for CPUs: a task is some columns of one group's matrix, packed
// once into the L2 cache as panels, and all the rows of the group.
//
//   rhs[g]  [depth, columns]        lhs, out
//   +------+------+------+         +---------+
//   | task | task | ...  |    x    | rows of | g
//   +------+------+------+         +---------+
//
// A few rows do not pay for packing: they read the matrix once, where it lies.
// Sums of outer products pack a task's columns of the rows, and walk the rows of
// the result.

#include "ragged_dot.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ragged_dot.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "pack-inl.h"
#include "ragged_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

template <class T>
const T* At(const RaggedOperand& x, size_t problem, size_t offset) {
  return static_cast<const T*>(x.data) + problem * x.problem + offset;
}

// One group of one problem, and the columns of one task.
struct Task {
  size_t problem, group, first_row, rows, column, columns;
};

// `rows` rows of `n` numbers, `stride` apart, as floats `to_stride` apart.
void ReadRows(const RaggedOperand& x, size_t problem, size_t offset, size_t stride,
              size_t rows, size_t n, size_t padded, size_t to_stride, float* to) {
  WithType(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = At<T>(x, problem, offset);
    for (size_t i = 0; i < rows; ++i) {
      ReadRow(from + i * stride, n, padded, to + i * to_stride);
    }
  });
}

void WriteRows(const float* from, size_t from_stride, size_t rows, size_t n,
               DType dtype, void* to, size_t offset, size_t to_stride) {
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* at = static_cast<T*>(to) + offset;
    for (size_t i = 0; i < rows; ++i) {
      WriteRow(from + i * from_stride, 1.0f, n, at + i * to_stride);
    }
  });
}

// c [rows, columns] = a b, in partial sums of kDepthChunk terms.
HWY_INLINE void GemmInChunks(size_t rows, size_t columns, size_t depth,
                             const Strided& a, const float* panels, float* c,
                             size_t c_row) {
  const size_t width = PanelWidth();
  for (size_t k = 0; k < depth; k += kDepthChunk) {
    Gemm(rows, columns, std::min(kDepthChunk, depth - k),
         {a.data + k * a.column, a.row, a.column},
         {panels + k * width, width, depth * width}, c, c_row, k > 0);
  }
}

// acc[r][0 .. columns) = row r of a times the matrix, rows of which lie `row`
// apart; columns are whole vectors or the last ones of the matrix.
template <size_t R, class T>
HWY_INLINE void FewRowsByMatrix(const float* a, size_t a_row, const T* matrix,
                                size_t row, size_t depth, size_t columns,
                                float* acc, size_t acc_row) {
  constexpr size_t kUnroll = 4;
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < R; ++r) {
    std::memset(acc + r * acc_row, 0, acc_row * sizeof(float));
  }
  size_t k = 0;
  for (; k + kUnroll <= depth; k += kUnroll, matrix += kUnroll * row) {
    size_t j = 0;
    for (; j + lanes <= columns; j += lanes) {
      VF b[kUnroll];
      for (size_t u = 0; u < kUnroll; ++u) b[u] = LoadF(matrix + u * row + j);
      for (size_t r = 0; r < R; ++r) {
        VF sum = hn::Mul(hn::Set(d, a[r * a_row + k]), b[0]);
        for (size_t u = 1; u < kUnroll; ++u) {
          sum = hn::MulAdd(hn::Set(d, a[r * a_row + k + u]), b[u], sum);
        }
        float* at = acc + r * acc_row + j;
        hn::StoreU(hn::Add(hn::LoadU(d, at), sum), d, at);
      }
    }
    for (; j < columns; ++j) {
      for (size_t r = 0; r < R; ++r) {
        float sum = 0.0f;
        for (size_t u = 0; u < kUnroll; ++u) {
          sum += a[r * a_row + k + u] * ToFloat(matrix[u * row + j]);
        }
        acc[r * acc_row + j] += sum;
      }
    }
  }
  for (; k < depth; ++k, matrix += row) {
    for (size_t j = 0; j < columns; ++j) {
      const float b = ToFloat(matrix[j]);
      for (size_t r = 0; r < R; ++r) acc[r * acc_row + j] += a[r * a_row + k] * b;
    }
  }
}

// acc[r][j] = row r of a times row j of the transposed matrix.
template <size_t R, class T>
HWY_INLINE void FewRowsByRows(const float* a, size_t a_row, const T* matrix,
                              size_t row, size_t depth, size_t columns, float* acc,
                              size_t acc_row) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < columns; ++j, matrix += row) {
    VF even[R], odd[R];
    for (size_t r = 0; r < R; ++r) even[r] = odd[r] = hn::Zero(d);
    size_t k = 0;
    for (; k + 2 * lanes <= depth; k += 2 * lanes) {
      const VF b = LoadF(matrix + k), c = LoadF(matrix + k + lanes);
      for (size_t r = 0; r < R; ++r) {
        const float* x = a + r * a_row + k;
        even[r] = hn::MulAdd(hn::LoadU(d, x), b, even[r]);
        odd[r] = hn::MulAdd(hn::LoadU(d, x + lanes), c, odd[r]);
      }
    }
    for (size_t r = 0; r < R; ++r) {
      float sum = SumOf(hn::Add(even[r], odd[r]));
      for (size_t i = k; i < depth; ++i) {
        sum += a[r * a_row + i] * ToFloat(matrix[i]);
      }
      acc[r * acc_row + j] = sum;
    }
  }
}

struct DotLocal {
  float *panels, *rows, *acc;

  DotLocal(const RaggedDotTiles& tiles, float* base)
      : panels(base),
        rows(base + tiles.panel_floats),
        acc(rows + tiles.row_floats) {}
};

// Of `task.columns` columns; the matrix is read once.
template <size_t R, class T>
HWY_INLINE void FewRows(const RaggedDot& c, const RaggedDotTiles& tiles,
                        const Task& task, const DotLocal& local) {
  const size_t matrix = task.group * c.depth * c.columns;
  if (c.is_transposed) {
    const T* at = At<T>(c.rhs, task.problem, matrix + task.column * c.depth);
    FewRowsByRows<R>(local.rows, tiles.row_stride, at, c.depth, c.depth,
                     task.columns, local.acc, tiles.acc_stride);
  } else {
    const T* at = At<T>(c.rhs, task.problem, matrix + task.column);
    FewRowsByMatrix<R>(local.rows, tiles.row_stride, at, c.columns, c.depth,
                       task.columns, local.acc, tiles.acc_stride);
  }
}

template <size_t R>
HWY_INLINE void FewRowsOf(const RaggedDot& c, const RaggedDotTiles& tiles,
                          const Task& task, const DotLocal& local) {
  if constexpr (R > 0) {
    if (task.rows != R) return FewRowsOf<R - 1>(c, tiles, task, local);
    WithType(c.rhs.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      FewRows<R, T>(c, tiles, task, local);
    });
  }
}

// Adds the bias and writes rows [row, row + rows) of the result.
void WriteResult(const RaggedDot& c, const RaggedDotTiles& tiles, const Task& task,
                 size_t row, size_t rows, const DotLocal& local) {
  if (c.bias.data != nullptr) {
    const float* bias = At<float>(c.bias, task.problem,
                                  task.group * c.columns + task.column);
    for (size_t r = 0; r < rows; ++r) {
      float* acc = local.acc + r * tiles.acc_stride;
      for (size_t j = 0; j < task.columns; ++j) acc[j] += bias[j];
    }
  }
  const size_t at = (task.problem * c.rows + row) * c.columns + task.column;
  WriteRows(local.acc, tiles.acc_stride, rows, task.columns, c.out_dtype, c.out, at,
            c.columns);
}

void ReadLhs(const RaggedDot& c, const RaggedDotTiles& tiles, const Task& task,
             size_t row, size_t rows, const DotLocal& local) {
  ReadRows(c.lhs, task.problem, row * c.depth, c.depth, rows, c.depth,
           RoundUp(c.depth, hn::Lanes(F32())), tiles.row_stride, local.rows);
}

void PackMatrix(const RaggedDot& c, const Task& task, const DotLocal& local) {
  const size_t matrix = task.group * c.depth * c.columns;
  WithType(c.rhs.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (c.is_transposed) {
      const T* from = At<T>(c.rhs, task.problem, matrix + task.column * c.depth);
      PackColumns(from, c.depth, c.depth, task.columns, local.panels);
    } else {
      const T* from = At<T>(c.rhs, task.problem, matrix + task.column);
      PackRows(from, c.columns, c.depth, task.columns, local.panels);
    }
  });
}

void DotTask(const RaggedDot& c, const RaggedDotTiles& tiles, const Task& task,
             const DotLocal& local) {
  if (task.rows <= kFewRows) {
    ReadLhs(c, tiles, task, task.first_row, task.rows, local);
    FewRowsOf<kFewRows>(c, tiles, task, local);
    return WriteResult(c, tiles, task, task.first_row, task.rows, local);
  }
  PackMatrix(c, task, local);
  const size_t padded = RoundUp(task.columns, PanelWidth());
  const bool is_direct = c.out_dtype == DType::kF32 && c.bias.data == nullptr &&
                         padded == task.columns;
  for (size_t i = 0; i < task.rows; i += tiles.block_rows) {
    const size_t row = task.first_row + i;
    const size_t rows = std::min(tiles.block_rows, task.rows - i);
    ReadLhs(c, tiles, task, row, rows, local);
    const Strided a{local.rows, tiles.row_stride, 1};
    const size_t at = (task.problem * c.rows + row) * c.columns + task.column;
    float* to = is_direct ? static_cast<float*>(c.out) + at : local.acc;
    GemmInChunks(rows, padded, c.depth, a, local.panels, to,
                 is_direct ? c.columns : tiles.acc_stride);
    if (!is_direct) WriteResult(c, tiles, task, row, rows, local);
  }
}

// Rows of no group become zeros. `owned` has a byte for each row of a problem.
void ZeroOtherRows(const RaggedDot& c, size_t problem, uint8_t* owned) {
  std::memset(owned, 0, c.rows);
  for (size_t g = 0; g < c.groups; ++g) {
    const RowRange own(c.groups_rows, problem, g, c.rows);
    std::memset(owned + own.first, 1, own.count);
  }
  const size_t row_bytes = c.columns * SizeOf(c.out_dtype);
  char* out = static_cast<char*>(c.out) + problem * c.rows * row_bytes;
  for (size_t m = 0; m < c.rows; ++m) {
    if (owned[m] == 0) std::memset(out + m * row_bytes, 0, row_bytes);
  }
}

void Dot(const RaggedDot& c, Workers& workers, void* scratch) {
  const RaggedDotTiles tiles(c.depth, c.columns, workers.Count());
  Arena arena(scratch);
  float* local = arena.Floats(workers.Count() * tiles.local_floats());
  uint8_t* owned = arena.Array<uint8_t>(c.problems * c.rows);
  ParallelFor(workers, c.problems, [&](size_t problem, size_t) {
    ZeroOtherRows(c, problem, owned + problem * c.rows);
  });
  const size_t tasks = c.problems * c.groups * tiles.chunks;
  ParallelFor(workers, tasks, [&](size_t index, size_t worker) {
    const size_t chunk = index % tiles.chunks, group = index / tiles.chunks;
    Task task{};
    task.problem = group / c.groups;
    task.group = group % c.groups;
    const RowRange own(c.groups_rows, task.problem, task.group, c.rows);
    task.first_row = own.first;
    task.rows = own.count;
    const size_t merged = own.count <= kFewRows ? tiles.few_chunks : 1;
    if (own.count == 0 || chunk % merged != 0) return;
    task.column = chunk * tiles.block_columns;
    task.columns =
        std::min(merged * tiles.block_columns, c.columns - task.column);
    DotTask(c, tiles, task, DotLocal(tiles, local + worker * tiles.local_floats()));
  });
}

size_t DotBytes(size_t problems, size_t rows, size_t depth, size_t columns,
                size_t threads) {
  Arena arena(nullptr);
  arena.Floats(threads * RaggedDotTiles(depth, columns, threads).local_floats());
  arena.Array<uint8_t>(problems * rows);
  return arena.used();
}

// Some columns of one group's sum.
void ContractingTask(const RaggedContractingDot& c, const ContractingTiles& tiles,
                     const Task& task, float* local) {
  float* panels = local;
  float* block = panels + tiles.panel_floats;
  float* acc = block + tiles.block_floats;
  const size_t k_all = c.lhs_columns, n_all = c.rhs_columns;
  const size_t padded = RoundUp(task.columns, PanelWidth());
  WithType(c.rhs.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = At<T>(c.rhs, task.problem, task.first_row * n_all + task.column);
    PackRows(from, n_all, task.rows, task.columns, panels);
  });
  const size_t result = (task.problem * c.groups + task.group) * k_all;
  for (size_t k = 0; k < k_all; k += kBlockColumns) {
    const size_t count = std::min(kBlockColumns, k_all - k);
    for (size_t m = 0; m < task.rows; m += kDepthChunk) {
      const size_t depth = std::min(kDepthChunk, task.rows - m);
      ReadRows(c.lhs, task.problem, (task.first_row + m) * k_all + k, k_all, depth,
               count, RoundUp(count, hn::Lanes(F32())), kBlockColumns, block);
      const size_t width = PanelWidth();
      Gemm(count, padded, depth, {block, 1, kBlockColumns},
           {panels + m * width, width, task.rows * width}, acc, tiles.block_columns,
           m > 0);
    }
    WriteRows(acc, tiles.block_columns, count, task.columns, c.out_dtype, c.out,
              (result + k) * n_all + task.column, n_all);
  }
}

void ZeroColumns(const RaggedContractingDot& c, const Task& task) {
  const size_t item = SizeOf(c.out_dtype);
  const size_t first = (task.problem * c.groups + task.group) * c.lhs_columns;
  for (size_t k = 0; k < c.lhs_columns; ++k) {
    const size_t at = (first + k) * c.rhs_columns + task.column;
    std::memset(static_cast<char*>(c.out) + at * item, 0, task.columns * item);
  }
}

void ContractingDot(const RaggedContractingDot& c, Workers& workers, void* scratch) {
  const ContractingTiles tiles(c.rows, c.rhs_columns, workers.Count());
  Arena arena(scratch);
  float* local = arena.Floats(workers.Count() * tiles.local_floats());
  const size_t tasks = c.problems * c.groups * tiles.chunks;
  ParallelFor(workers, tasks, [&](size_t index, size_t worker) {
    const size_t group = index / tiles.chunks;
    Task task{};
    task.problem = group / c.groups;
    task.group = group % c.groups;
    const RowRange own(c.groups_rows, task.problem, task.group, c.rows);
    task.first_row = own.first;
    task.rows = own.count;
    task.column = index % tiles.chunks * tiles.block_columns;
    task.columns = std::min(tiles.block_columns, c.rhs_columns - task.column);
    if (task.rows == 0) return ZeroColumns(c, task);
    ContractingTask(c, tiles, task, local + worker * tiles.local_floats());
  });
}

size_t ContractingBytes(size_t rows, size_t rhs_columns, size_t threads) {
  Arena arena(nullptr);
  arena.Floats(threads * ContractingTiles(rows, rhs_columns, threads).local_floats());
  return arena.used();
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokumx {

HWY_EXPORT(Dot);
HWY_EXPORT(DotBytes);
HWY_EXPORT(ContractingDot);
HWY_EXPORT(ContractingBytes);

size_t RaggedDotScratch(size_t problems, size_t rows, size_t depth, size_t columns,
                        size_t threads) {
  return HWY_DYNAMIC_DISPATCH(DotBytes)(problems, rows, depth, columns, threads);
}

size_t RaggedContractingScratch(size_t rows, size_t rhs_columns, size_t threads) {
  return HWY_DYNAMIC_DISPATCH(ContractingBytes)(rows, rhs_columns, threads);
}

void RunRaggedDot(const RaggedDot& call, Workers& workers, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Dot)(call, workers, scratch);
}

void RunRaggedContractingDot(const RaggedContractingDot& call, Workers& workers,
                             void* scratch) {
  HWY_DYNAMIC_DISPATCH(ContractingDot)(call, workers, scratch);
}

}  // namespace tokumx
#endif  // HWY_ONCE
