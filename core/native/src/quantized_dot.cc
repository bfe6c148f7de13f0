// Products with quantized matrices for CPUs.
//
// A few rows read the matrix once, in its bits: a task is some columns of the
// result, and goes through the matrix in segments of rows that share a scale:
//
//   for each segment of K:  part = x[:, segment] (values - zero)[segment]
//                           out += part * scale
//
// Many rows bring a block of the matrix back to float, [504 x 256] in the L2 cache,
// and multiply all rows with it.

#include "quantized_dot.h"

#include <algorithm>
#include <cstring>

#include "arena.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantized_dot.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "gemm-inl.h"

#ifndef TOKUMX_QUANTIZED_DOT_TILES_
#define TOKUMX_QUANTIZED_DOT_TILES_
namespace tokumx {

// Of a block of the matrix: panels of so many rows do not lie a power of two apart,
// where they would share the lines of a cache.
constexpr size_t kBlockDepth = 504;
constexpr size_t kBlockWidth = 256;    // columns of the result of a task
constexpr size_t kBlockRows = 48;      // a multiple of every micro kernel's rows
constexpr size_t kMostFewRows = 32;    // read the matrix in its bits,
constexpr size_t kFewRows = 8;         // so many at a time
constexpr size_t kFewWidth = 2048;     // columns of a task of few rows, at most
constexpr size_t kFewSums = 8192;      // of a task: half of a small L1 cache
constexpr size_t kMostOfGroup = 512;   // columns of a block, or rows of its transpose
constexpr size_t kUnroll = 8;          // rows of the matrix that share a pass

// Scratch of one thread: for few rows, or for many.
struct QuantizedLocal {
  // Few: rows of x, scaled if transposed; a segment's sums; the task's; zero points
  // and scales of a segment.
  float *rows, *part, *sums, *zero, *scale;
  // Many: a block of the matrix; of x; of the result; a row of the matrix.
  float *panels, *block, *acc, *line;
  size_t row_stride;
  size_t bytes;

  QuantizedLocal(void* base, size_t depth, size_t columns) {
    row_stride = RoundUp(std::max(depth, columns), 16) + 16;
    Arena few(base);
    rows = few.Floats(2 * kFewRows * row_stride);
    part = few.Floats(kFewRows * kFewWidth);
    sums = few.Floats(kFewRows * kFewWidth);
    zero = few.Floats(row_stride);
    scale = few.Floats(row_stride);
    Arena many(base);
    panels = many.Floats(kBlockDepth * kBlockWidth);
    block = many.Floats(kBlockRows * kBlockDepth);
    acc = many.Floats(kBlockRows * kBlockWidth);
    line = many.Floats(kMostOfGroup);
    bytes = std::max(few.used(), many.used());
  }
};

}  // namespace tokumx
#endif

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

// How many numbers a byte holds, and how to read a vector of each.
template <class T>
struct OneInAByte {
  static constexpr size_t kNumbers = 1;
  static HWY_INLINE void Load(const uint8_t* from, VF* to) {
    to[0] = LoadF(reinterpret_cast<const T*>(from));
  }
};

struct TwoInAByte {
  static constexpr size_t kNumbers = 2;
  static HWY_INLINE void Load(const uint8_t* from, VF* to) {
    const hn::Rebind<uint8_t, F32> bytes;
    const VI bits = hn::PromoteTo(I32(), hn::LoadU(bytes, from));
#if HWY_MAX_BYTES == 64
    // A register holds all sixteen numbers. The look-up reads four bits of an index.
    HWY_ALIGN static constexpr float kNumber[16] = {
        0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const VF table = hn::Load(F32(), kNumber);
    const VI high = hn::ShiftRight<4>(bits);
    const VI low = HWY_IS_DEBUG_BUILD ? hn::And(bits, hn::Set(I32(), 15)) : bits;
    to[0] = hn::TableLookupLanes(table, hn::IndicesFromVec(F32(), low));
    to[1] = hn::TableLookupLanes(table, hn::IndicesFromVec(F32(), high));
#else
    const VI low = hn::ShiftRight<28>(hn::ShiftLeft<28>(bits));
    const VI high = hn::ShiftRight<28>(hn::ShiftLeft<24>(bits));
    to[0] = hn::ConvertTo(F32(), low);
    to[1] = hn::ConvertTo(F32(), high);
#endif
  }
};

// Calls fn with a value of the kind's type.
template <class Fn>
HWY_INLINE void WithKind(QuantKind kind, const Fn& fn) {
  switch (kind) {
    case QuantKind::kI8:
      return fn(OneInAByte<int8_t>());
    case QuantKind::kI4:
      return fn(TwoInAByte());
    case QuantKind::kF8E4M3:
      return fn(OneInAByte<F8E4M3>());
    case QuantKind::kF8E5M2:
      return fn(OneInAByte<F8E5M2>());
  }
}

// Reads one vector, of which `count` bytes are there.
template <class Kind>
HWY_INLINE void LoadSome(const uint8_t* from, size_t count, VF* to) {
  if (count >= hn::Lanes(F32())) return Kind::Load(from, to);
  HWY_ALIGN uint8_t rest[HWY_MAX_LANES_D(F32)] = {};
  std::memcpy(rest, from, count);
  Kind::Load(rest, to);
}

// Zero points or scales of columns [first, first + n) in one group, as floats; what
// is beyond n up to a vector is 0.
template <class T>
HWY_INLINE void ReadOfGroup(const QuantizedMatrix& w, const T* all, size_t group,
                            size_t first, size_t n, float* to) {
  const size_t padded = RoundUp(n, hn::Lanes(F32()));
  if (w.has_column_scales) {
    return ReadRow(all + group * w.columns + first, n, padded, to);
  }
  std::fill_n(to, n, ToFloat(all[group]));
  std::fill_n(to + n, padded - n, 0.0f);
}

// The matrix of one problem.
struct Matrix {
  const QuantizedMatrix& w;
  const uint8_t* values;
  const float* scales;
  const int8_t* zero_points;
  size_t group_size;

  Matrix(const QuantizedMatrix& all, size_t problem)
      : w(all),
        values(all.values + problem * all.values_problem),
        scales(all.scales + problem * all.scales_problem),
        zero_points(all.zero_points == nullptr
                        ? nullptr
                        : all.zero_points + problem * all.zero_problem),
        group_size(all.depth / all.groups) {}
};

// to[0 .. n) = w[k][first .. first + n); `zero` and `scale` are those of its group.
template <class Kind>
HWY_INLINE void ReadLine(const Matrix& m, size_t k, size_t first, size_t n,
                         const float* zero, const float* scale, float* to) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const uint8_t* from = m.values + k / Kind::kNumbers * m.w.columns + first;
  const size_t which = k % Kind::kNumbers;
  for (size_t j = 0; j < n; j += lanes) {
    VF v[Kind::kNumbers];
    LoadSome<Kind>(from + j, n - j, v);
    VF number = v[which];
    if (zero != nullptr) number = hn::Sub(number, hn::LoadU(d, zero + j));
    hn::StoreU(hn::Mul(number, hn::LoadU(d, scale + j)), d, to + j);
  }
}

// part[r][0 .. n) (+)= the sum over P bytes' rows of a[r][k] * (values[k] - zero).
template <size_t R, size_t P, class Kind>
HWY_INLINE void AddRows(const float* a, size_t a_row, const uint8_t* values,
                        size_t stride, size_t n, const float* zero, bool is_first,
                        float* part) {
  constexpr size_t kCount = P * Kind::kNumbers;
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < n; j += lanes) {
    VF b[kCount];
    for (size_t p = 0; p < P; ++p) {
      LoadSome<Kind>(values + p * stride + j, n - j, b + p * Kind::kNumbers);
    }
    if (zero != nullptr) {
      const VF z = hn::LoadU(d, zero + j);
      for (size_t u = 0; u < kCount; ++u) b[u] = hn::Sub(b[u], z);
    }
    for (size_t r = 0; r < R; ++r) {
      float* at = part + r * kFewWidth + j;
      VF sum = hn::Mul(hn::Set(d, a[r * a_row]), b[0]);
      for (size_t u = 1; u < kCount; ++u) {
        sum = hn::MulAdd(hn::Set(d, a[r * a_row + u]), b[u], sum);
      }
      if (!is_first) sum = hn::Add(sum, hn::LoadU(d, at));
      hn::StoreU(sum, d, at);
    }
  }
}

// part[r][0 .. n) = the sum over rows [k, k + count) of the matrix.
template <size_t R, class Kind>
HWY_INLINE void SumSegment(const Matrix& m, const float* a, size_t a_row, size_t k,
                           size_t count, size_t column, size_t n, const float* zero,
                           float* part) {
  constexpr size_t kTogether = kUnroll / Kind::kNumbers;
  const size_t stride = m.w.columns;
  const uint8_t* values = m.values + k / Kind::kNumbers * stride + column;
  const size_t lines = count / Kind::kNumbers;
  a += k;
  size_t p = 0;
  for (; p + kTogether <= lines; p += kTogether) {
    AddRows<R, kTogether, Kind>(a + p * Kind::kNumbers, a_row, values + p * stride,
                                stride, n, zero, p == 0, part);
  }
  for (; p < lines; ++p) {
    AddRows<R, 1, Kind>(a + p * Kind::kNumbers, a_row, values + p * stride, stride, n,
                        zero, p == 0, part);
  }
}

// Columns [column, column + n) of R rows of x times the matrix, to `out`.
template <size_t R, class Kind>
HWY_INLINE void FewTimesMatrix(const Matrix& m, size_t column, size_t n,
                               const QuantizedLocal& local, float* out,
                               size_t out_row) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const size_t segment = std::min(m.group_size, kBlockDepth);
  for (size_t k = 0; k < m.w.depth;) {
    const size_t group = k / m.group_size;
    const size_t end = (group + 1) * m.group_size;
    const size_t count = std::min(segment, end - k);
    ReadOfGroup(m.w, m.scales, group, column, n, local.scale);
    float* zero = nullptr;
    if (m.zero_points != nullptr) {
      zero = local.zero;
      ReadOfGroup(m.w, m.zero_points, group, column, n, zero);
    }
    SumSegment<R, Kind>(m, local.rows, local.row_stride, k, count, column, n, zero,
                        local.part);
    for (size_t r = 0; r < R; ++r) {
      const float* part = local.part + r * kFewWidth;
      float* sums = local.sums + r * kFewWidth;
      for (size_t j = 0; j < n; j += lanes) {
        const VF product =
            hn::Mul(hn::LoadU(d, part + j), hn::LoadU(d, local.scale + j));
        const VF before = k == 0 ? hn::Zero(d) : hn::LoadU(d, sums + j);
        hn::StoreU(hn::Add(before, product), d, sums + j);
      }
    }
    k += count;
  }
  for (size_t r = 0; r < R; ++r) {
    std::memcpy(out + r * out_row, local.sums + r * kFewWidth, n * sizeof(float));
  }
}

// Rows [k, k + count) of the matrix, in one group, times R scaled rows.
template <size_t R, class Kind>
HWY_INLINE void DotLines(const Matrix& m, size_t k, size_t count, const float* rows,
                         size_t row_stride, const float* zero, float* out,
                         size_t out_row) {
  const F32 d;
  const size_t lanes = hn::Lanes(d), n = m.w.columns;
  for (size_t i = 0; i < count; i += Kind::kNumbers) {
    const uint8_t* from = m.values + (k + i) / Kind::kNumbers * n;
    VF sum[R][Kind::kNumbers];
    for (size_t r = 0; r < R; ++r) {
      for (size_t u = 0; u < Kind::kNumbers; ++u) sum[r][u] = hn::Zero(d);
    }
    for (size_t j = 0; j < n; j += lanes) {
      VF b[Kind::kNumbers];
      LoadSome<Kind>(from + j, n - j, b);
      for (size_t u = 0; u < Kind::kNumbers; ++u) {
        if (zero != nullptr) b[u] = hn::Sub(b[u], hn::LoadU(d, zero + j));
        for (size_t r = 0; r < R; ++r) {
          const VF x = hn::LoadU(d, rows + r * row_stride + j);
          sum[r][u] = hn::MulAdd(x, b[u], sum[r][u]);
        }
      }
    }
    for (size_t r = 0; r < R; ++r) {
      for (size_t u = 0; u < Kind::kNumbers; ++u) {
        out[r * out_row + i + u] = SumOf(sum[r][u]);
      }
    }
  }
}

// Columns [column, column + n) of R rows of x times the transposed matrix: rows of
// the matrix. Two in a byte are in one task: `column` and `n` are even then.
template <size_t R, class Kind>
HWY_INLINE void FewTimesTransposed(const Matrix& m, size_t column, size_t n,
                                   const QuantizedLocal& local, float* out,
                                   size_t out_row) {
  const F32 d;
  const size_t columns = m.w.columns, lanes = hn::Lanes(d);
  float* scaled = local.rows + kFewRows * local.row_stride;
  for (size_t k = column; k < column + n;) {
    const size_t group = k / m.group_size;
    const size_t end = std::min((group + 1) * m.group_size, column + n);
    ReadOfGroup(m.w, m.scales, group, 0, columns, local.scale);
    float* zero = nullptr;
    if (m.zero_points != nullptr) {
      zero = local.zero;
      ReadOfGroup(m.w, m.zero_points, group, 0, columns, zero);
    }
    for (size_t r = 0; r < R; ++r) {
      const float* x = local.rows + r * local.row_stride;
      float* to = scaled + r * local.row_stride;
      for (size_t j = 0; j < columns; j += lanes) {
        const VF v = hn::Mul(hn::LoadU(d, x + j), hn::LoadU(d, local.scale + j));
        hn::StoreU(v, d, to + j);
      }
    }
    DotLines<R, Kind>(m, k, end - k, scaled, local.row_stride, zero,
                      out + (k - column), out_row);
    k = end;
  }
}

// Some columns of the result of one problem.
struct QuantizedTask {
  size_t problem, column, columns;
};

struct Sizes {
  size_t inner, result;  // of a product: K and N, or N and K

  explicit Sizes(const QuantizedDot& c)
      : inner(c.is_transposed ? c.w.columns : c.w.depth),
        result(c.is_transposed ? c.w.depth : c.w.columns) {}
};

void ReadX(const QuantizedDot& c, size_t problem, size_t row, size_t rows,
           size_t first, size_t n, float* to, size_t to_stride) {
  const size_t inner = Sizes(c).inner;
  WithType(c.x_dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from =
        static_cast<const T*>(c.x) + problem * c.x_problem + row * inner + first;
    for (size_t i = 0; i < rows; ++i) {
      ReadRow(from + i * inner, n, RoundUp(n, hn::Lanes(F32())), to + i * to_stride);
    }
  });
}

// Rows [row, row + rows), at most R.
template <size_t R>
HWY_INLINE void FewRows(const QuantizedDot& c, const QuantizedTask& task, size_t row,
                        size_t rows, const QuantizedLocal& local) {
  if constexpr (R > 0) {
    if (rows != R) return FewRows<R - 1>(c, task, row, rows, local);
    const Sizes sizes(c);
    ReadX(c, task.problem, row, R, 0, sizes.inner, local.rows, local.row_stride);
    float* out = c.out + (task.problem * c.rows + row) * sizes.result + task.column;
    const Matrix m(c.w, task.problem);
    WithKind(c.w.kind, [&](auto kind) {
      using Kind = decltype(kind);
      if (c.is_transposed) {
        FewTimesTransposed<R, Kind>(m, task.column, task.columns, local, out,
                                    sizes.result);
      } else {
        FewTimesMatrix<R, Kind>(m, task.column, task.columns, local, out,
                                sizes.result);
      }
    });
  }
}

// Zero points and scales of the group that a row of the matrix is in, for `n`
// columns from `first` on; `buffer` has room for twice as many.
struct GroupOfRow {
  const Matrix& m;
  size_t first, n;
  float* buffer;
  size_t current;

  const float* scale() const { return buffer; }
  const float* zero() const { return m.zero_points ? buffer + kMostOfGroup : nullptr; }

  HWY_INLINE void MoveTo(size_t k) {
    const size_t group = k / m.group_size;
    if (group == current) return;
    current = group;
    ReadOfGroup(m.w, m.scales, group, first, n, buffer);
    if (m.zero_points == nullptr) return;
    ReadOfGroup(m.w, m.zero_points, group, first, n, buffer + kMostOfGroup);
  }
};

// Rows [k0, k0 + depth) of the matrix, columns [n0, n0 + n), as panels.
template <class Kind>
HWY_INLINE void PackMatrixRows(const Matrix& m, size_t k0, size_t depth, size_t n0,
                               size_t n, GroupOfRow& group, float* panels) {
  const F32 d;
  const size_t lanes = hn::Lanes(d), width = PanelWidth();
  const size_t padded = RoundUp(n, width);
  for (size_t k = 0; k < depth; k += Kind::kNumbers) {
    group.MoveTo(k0 + k);
    const float *zero = group.zero(), *scale = group.scale();
    const uint8_t* from = m.values + (k0 + k) / Kind::kNumbers * m.w.columns + n0;
    for (size_t j = 0; j < padded; j += lanes) {
      float* to = panels + j / width * depth * width + k * width + j % width;
      VF v[Kind::kNumbers];
      if (j < n) {
        LoadSome<Kind>(from + j, n - j, v);
      } else {
        for (VF& x : v) x = hn::Zero(d);
      }
      for (size_t u = 0; u < Kind::kNumbers; ++u) {
        if (j < n && zero != nullptr) v[u] = hn::Sub(v[u], hn::LoadU(d, zero + j));
        if (j < n) v[u] = hn::Mul(v[u], hn::LoadU(d, scale + j));
        hn::StoreU(v[u], d, to + u * width);
      }
    }
  }
}

// The matrix [depth, columns] of panels, from w[k ..][n ..] or its transpose.
void PackBlock(const QuantizedDot& c, const Matrix& m, size_t first, size_t depth,
               const QuantizedTask& task, const QuantizedLocal& local) {
  const size_t k0 = c.is_transposed ? task.column : first;
  const size_t n0 = c.is_transposed ? first : task.column;
  const size_t n = c.is_transposed ? depth : task.columns;
  // `acc` is not in use while packing.
  GroupOfRow group{m, n0, n, local.acc, m.w.groups};
  WithKind(c.w.kind, [&](auto kind) {
    using Kind = decltype(kind);
    if (!c.is_transposed) {
      return PackMatrixRows<Kind>(m, k0, depth, n0, n, group, local.panels);
    }
    const auto line = [&](size_t i) {
      group.MoveTo(k0 + i);
      ReadLine<Kind>(m, k0 + i, n0, n, group.zero(), group.scale(), local.line);
      return static_cast<const float*>(local.line);
    };
    PackTransposed(task.columns, RoundUp(task.columns, PanelWidth()), depth, line,
                   local.panels);
  });
}

void MultiplyBlock(const QuantizedDot& c, size_t first, size_t depth,
                   const QuantizedTask& task, const QuantizedLocal& local) {
  const size_t width = PanelWidth(), padded = RoundUp(task.columns, width);
  const Sizes sizes(c);
  const Panels panels{local.panels, width, depth * width};
  const bool is_direct = padded == task.columns;
  for (size_t row = 0; row < c.rows; row += kBlockRows) {
    const size_t rows = std::min(kBlockRows, c.rows - row);
    Strided a{local.block, kBlockDepth, 1};
    if (c.x_dtype == DType::kF32) {
      a = {static_cast<const float*>(c.x) + task.problem * c.x_problem +
               row * sizes.inner + first,
           sizes.inner, 1};
    } else {
      ReadX(c, task.problem, row, rows, first, depth, local.block, kBlockDepth);
    }
    float* out =
        c.out + (task.problem * c.rows + row) * sizes.result + task.column;
    if (is_direct) {
      Gemm(rows, padded, depth, a, panels, out, sizes.result, first > 0);
      continue;
    }
    Gemm(rows, padded, depth, a, panels, local.acc, kBlockWidth, false);
    for (size_t i = 0; i < rows; ++i) {
      const float* from = local.acc + i * kBlockWidth;
      float* to = out + i * sizes.result;
      for (size_t j = 0; j < task.columns; ++j) {
        to[j] = first > 0 ? to[j] + from[j] : from[j];
      }
    }
  }
}

size_t LocalBytes(const QuantizedDot& c) {
  return QuantizedLocal(nullptr, c.w.depth, c.w.columns).bytes;
}

void Dot(const QuantizedDot& c, Workers& workers, void* scratch) {
  const Sizes sizes(c);
  const bool is_few = c.rows <= kMostFewRows;
  const size_t share =
      RoundUp(CeilDiv(sizes.result, 2 * workers.Count()), size_t{64});
  const size_t few_width = std::min(kFewSums / std::min(c.rows, kFewRows), kFewWidth);
  const size_t width =
      std::min(share, is_few ? RoundUp(few_width, size_t{64}) : kBlockWidth);
  const size_t chunks = CeilDiv(sizes.result, width), local_bytes = LocalBytes(c);
  ParallelFor(workers, c.problems * chunks, [&](size_t index, size_t worker) {
    const QuantizedLocal local(static_cast<char*>(scratch) + worker * local_bytes,
                               c.w.depth, c.w.columns);
    QuantizedTask task{};
    task.problem = index / chunks;
    task.column = index % chunks * width;
    task.columns = std::min(width, sizes.result - task.column);
    if (is_few) {
      for (size_t row = 0; row < c.rows; row += kFewRows) {
        FewRows<kFewRows>(c, task, row, std::min(kFewRows, c.rows - row), local);
      }
      return;
    }
    const Matrix m(c.w, task.problem);
    for (size_t first = 0; first < sizes.inner; first += kBlockDepth) {
      const size_t depth = std::min(kBlockDepth, sizes.inner - first);
      PackBlock(c, m, first, depth, task, local);
      MultiplyBlock(c, first, depth, task, local);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokumx {

HWY_EXPORT(Dot);

size_t QuantizedDotScratch(size_t depth, size_t columns, size_t threads) {
  return threads * QuantizedLocal(nullptr, depth, columns).bytes;
}

void RunQuantizedDot(const QuantizedDot& call, Workers& workers, void* scratch) {
  if (call.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(Dot)(call, workers, scratch);
}

}  // namespace tokumx
#endif  // HWY_ONCE
