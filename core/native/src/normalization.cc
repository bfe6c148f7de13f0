// Norms of rows for CPUs: a task is some rows, each read from memory once and then
// again from the cache.
//
// Backward, with c = s - mean and g = ct * scale:
//   k1 = rstd^2 * mean(g * c),  k2 = mean(g), or 0
//   dx = rstd * (g - k2 - c * k1) + ct_total
//   d_scale = sum over rows of ct * c * rstd,  d_bias = sum over rows of ct
// The sums over rows are of blocks of rows, then of a share's blocks, then of the
// shares in order: the same numbers whatever the number of threads.

#include "normalization.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "arena.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "normalization.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "rows-inl.h"

#ifndef TOKUMX_NORMALIZATION_TILES_
#define TOKUMX_NORMALIZATION_TILES_
namespace tokumx {

constexpr size_t kTaskNumbers = 1 << 14;  // of x, in a task of the forward
constexpr size_t kBlockRows = 64;         // whose sums are added up first
constexpr size_t kGroup = 4;              // rows that share a pass over the sums
constexpr size_t kMaxShares = 64;

// How a backward divides the rows of each problem.
struct Shares {
  size_t count, rows;

  explicit Shares(size_t all_rows) {
    const size_t blocks = std::max<size_t>(CeilDiv(all_rows, kBlockRows), 1);
    rows = CeilDiv(blocks, std::min(blocks, kMaxShares)) * kBlockRows;
    count = std::max<size_t>(CeilDiv(all_rows, rows), 1);
  }
};

// Sums of all shares, and of the block that each thread is at; [2, D] each, the
// scale's first.
struct BackwardSums {
  size_t width;
  float *shares, *blocks;

  BackwardSums(Arena& arena, size_t share_count, size_t columns, size_t threads)
      : width(RoundUp(columns, 16)),
        shares(arena.Floats(share_count * 2 * width)),
        blocks(arena.Floats(threads * 2 * width)) {}
};

}  // namespace tokumx
#endif

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

// A whole vector of columns from `at` on, or the last ones of a row.
struct Whole {
  static constexpr bool kIsWhole = true;
  size_t at, count;
};
struct Rest {
  static constexpr bool kIsWhole = false;
  size_t at, count;
};

// Calls fn for whole vectors, and once for what is left.
template <class Fn>
HWY_INLINE void ForColumns(size_t columns, const Fn& fn) {
  const size_t lanes = hn::Lanes(F32());
  size_t j = 0;
  for (; j + lanes <= columns; j += lanes) fn(Whole{j, lanes});
  if (j < columns) fn(Rest{j, columns - j});
}

// Columns that are not there read as 0.
template <class T, class Part>
HWY_INLINE VF Load(const T* row, Part part) {
  if constexpr (Part::kIsWhole) {
    return LoadF(row + part.at);
  } else {
    HWY_ALIGN T rest[HWY_MAX_LANES_D(F32)];
    std::memset(static_cast<void*>(rest), 0, sizeof(rest));
    std::memcpy(static_cast<void*>(rest), row + part.at, part.count * sizeof(T));
    return LoadF(rest);
  }
}

template <class T, class Part>
HWY_INLINE void Store(VF v, T* row, Part part) {
  if constexpr (Part::kIsWhole) {
    StoreF(v, row + part.at);
  } else {
    HWY_ALIGN T rest[HWY_MAX_LANES_D(F32)];
    StoreF(v, rest);
    std::memcpy(static_cast<void*>(row + part.at), rest, part.count * sizeof(T));
  }
}

// v, and 0 in columns that are not there.
template <class Part>
HWY_INLINE VF There(VF v, Part part) {
  if constexpr (Part::kIsWhole) return v;
  return hn::IfThenElseZero(hn::FirstN(F32(), part.count), v);
}

// The sum of f(part) over a row, in four partial sums a lane.
template <class Fn>
HWY_INLINE float RowSum(size_t columns, const Fn& f) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  VF a = hn::Zero(d), b = a, c = a, e = a;
  size_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes) {
    a = hn::Add(a, f(Whole{j, lanes}));
    b = hn::Add(b, f(Whole{j + lanes, lanes}));
    c = hn::Add(c, f(Whole{j + 2 * lanes, lanes}));
    e = hn::Add(e, f(Whole{j + 3 * lanes, lanes}));
  }
  for (; j + lanes <= columns; j += lanes) a = hn::Add(a, f(Whole{j, lanes}));
  if (j < columns) b = hn::Add(b, f(Rest{j, columns - j}));
  return SumOf(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

template <class T>
HWY_INLINE const T* RowOf(const void* x, size_t row, size_t columns) {
  return static_cast<const T*>(x) + row * columns;
}
template <class T>
HWY_INLINE T* RowOf(void* x, size_t row, size_t columns) {
  return static_cast<T*>(x) + row * columns;
}

// The row to normalize: x's, or its sum with the residual.
template <class T>
HWY_INLINE const T* AddResidual(const RowNorm& c, size_t row) {
  const T* x = RowOf<T>(c.x, row, c.columns);
  if (c.residual == nullptr) return x;
  const T* residual = RowOf<T>(c.residual, row, c.columns);
  T* total = RowOf<T>(c.total, row, c.columns);
  ForColumns(c.columns, [&](auto part) HWY_ATTR {
    Store(hn::Add(Load(x, part), Load(residual, part)), total, part);
  });
  return total;
}

struct Statistics {
  float mean, rstd;
};

template <class T>
HWY_INLINE Statistics StatisticsOf(const RowNorm& c, const T* s) {
  const F32 d;
  const float width = static_cast<float>(c.columns);
  float mean = 0.0f, squares;
  if (c.is_centered) {
    mean = RowSum(c.columns, [&](auto part) HWY_ATTR { return Load(s, part); }) / width;
    const VF m = hn::Set(d, mean);
    squares = RowSum(c.columns, [&](auto part) HWY_ATTR {
      const VF v = There(hn::Sub(Load(s, part), m), part);
      return hn::Mul(v, v);
    });
  } else {
    squares = RowSum(c.columns, [&](auto part) HWY_ATTR {
      const VF v = Load(s, part);
      return hn::Mul(v, v);
    });
  }
  return {mean, 1.0f / std::sqrt(squares / width + c.eps)};
}

template <class T, bool kHasScale, bool kHasBias>
HWY_INLINE void WriteNormalized(const RowNorm& c, const T* s, Statistics found,
                                const float* scale, const float* bias, T* out) {
  const F32 d;
  const VF mean = hn::Set(d, found.mean), rstd = hn::Set(d, found.rstd);
  ForColumns(c.columns, [&](auto part) HWY_ATTR {
    VF v = hn::Mul(hn::Sub(Load(s, part), mean), rstd);
    if constexpr (kHasScale) v = hn::Mul(v, Load(scale, part));
    if constexpr (kHasBias) v = hn::Add(v, Load(bias, part));
    Store(v, out, part);
  });
}

template <class T>
HWY_INLINE void NormalizeRow(const RowNorm& c, size_t problem, size_t row) {
  const T* s = AddResidual<T>(c, row);
  const Statistics found = StatisticsOf(c, s);
  c.rstd[row] = found.rstd;
  if (c.mean != nullptr) c.mean[row] = found.mean;
  T* out = RowOf<T>(c.out, row, c.columns);
  const float* scale = c.scale ? c.scale + problem * c.scale_problem : nullptr;
  const float* bias = c.bias ? c.bias + problem * c.bias_problem : nullptr;
  if (scale && bias) return WriteNormalized<T, true, true>(c, s, found, scale, bias, out);
  if (scale) return WriteNormalized<T, true, false>(c, s, found, scale, bias, out);
  if (bias) return WriteNormalized<T, false, true>(c, s, found, scale, bias, out);
  WriteNormalized<T, false, false>(c, s, found, scale, bias, out);
}

void Forward(const RowNorm& c, Workers& workers) {
  const size_t all = c.problems * c.rows;
  const size_t block = std::max<size_t>(kTaskNumbers / c.columns, 1);
  ParallelFor(workers, CeilDiv(all, block), [&](size_t task, size_t) {
    WithType(c.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const size_t end = std::min((task + 1) * block, all);
      for (size_t row = task * block; row < end; ++row) {
        NormalizeRow<T>(c, row / c.rows, row);
      }
    });
  });
}

// Of one row, for the backward.
template <class T>
struct BackwardRow {
  const T *s, *ct, *ct_total;
  T* dx;
  float mean, rstd, k1, k2;
};

// With k1 and k2, which need sums over the row.
template <class T>
HWY_INLINE BackwardRow<T> BackwardRowOf(const RowNormBackward& c, const float* scale,
                                        size_t row) {
  BackwardRow<T> r{};
  r.s = RowOf<T>(c.total, row, c.columns);
  r.ct = RowOf<T>(c.ct, row, c.columns);
  r.ct_total = c.ct_total ? RowOf<T>(c.ct_total, row, c.columns) : nullptr;
  r.dx = RowOf<T>(c.dx, row, c.columns);
  r.mean = c.mean ? c.mean[row] : 0.0f;
  r.rstd = c.rstd[row];
  const VF mean = hn::Set(F32(), r.mean);
  const float width = static_cast<float>(c.columns);
  auto g = [&](auto part) HWY_ATTR {
    const VF ct = Load(r.ct, part);
    return scale ? hn::Mul(ct, Load(scale, part)) : ct;
  };
  const float products = RowSum(c.columns, [&](auto part) HWY_ATTR {
    return hn::Mul(g(part), hn::Sub(Load(r.s, part), mean));
  });
  r.k1 = r.rstd * r.rstd * (products / width);
  if (c.mean != nullptr) r.k2 = RowSum(c.columns, g) / width;
  return r;
}

// Writes dx of R rows, and adds to the block's sums; those that are null are not
// wanted.
template <size_t R, class T>
HWY_INLINE void BackwardRows(const RowNormBackward& c, const float* scale,
                             const BackwardRow<T>* rows, float* d_scale,
                             float* d_bias) {
  const F32 d;
  ForColumns(c.columns, [&](auto part) HWY_ATTR {
    VF scale_sum = hn::Zero(d), bias_sum = hn::Zero(d);
    for (size_t i = 0; i < R; ++i) {
      const BackwardRow<T>& r = rows[i];
      const VF rstd = hn::Set(d, r.rstd), ct = Load(r.ct, part);
      const VF centered = hn::Sub(Load(r.s, part), hn::Set(d, r.mean));
      VF dx = scale ? hn::Mul(ct, Load(scale, part)) : ct;
      dx = hn::Sub(dx, hn::Set(d, r.k2));
      dx = hn::Mul(rstd, hn::NegMulAdd(centered, hn::Set(d, r.k1), dx));
      if (r.ct_total) dx = hn::Add(dx, Load(r.ct_total, part));
      Store(dx, r.dx, part);
      scale_sum = hn::MulAdd(hn::Mul(ct, centered), rstd, scale_sum);
      bias_sum = hn::Add(bias_sum, ct);
    }
    if (d_scale) Store(hn::Add(Load(d_scale, part), scale_sum), d_scale, part);
    if (d_bias) Store(hn::Add(Load(d_bias, part), bias_sum), d_bias, part);
  });
}

// Rows [row, row + rows), at most a block; sums are written, not added to.
template <class T>
HWY_INLINE void BackwardBlock(const RowNormBackward& c, const float* scale, size_t row,
                              size_t rows, float* d_scale, float* d_bias) {
  const size_t bytes = c.columns * sizeof(float);
  if (d_scale) std::memset(d_scale, 0, bytes);
  if (d_bias) std::memset(d_bias, 0, bytes);
  const size_t end = row + rows;
  for (; row + kGroup <= end; row += kGroup) {
    BackwardRow<T> group[kGroup];
    for (size_t i = 0; i < kGroup; ++i) {
      group[i] = BackwardRowOf<T>(c, scale, row + i);
    }
    BackwardRows<kGroup>(c, scale, group, d_scale, d_bias);
  }
  for (; row < end; ++row) {
    const BackwardRow<T> one = BackwardRowOf<T>(c, scale, row);
    BackwardRows<1>(c, scale, &one, d_scale, d_bias);
  }
}

HWY_INLINE void AddTo(float* sum, const float* more, size_t columns) {
  ForColumns(columns, [&](auto part) HWY_ATTR {
    Store(hn::Add(Load(sum, part), Load(more, part)), sum, part);
  });
}

void BackwardShare(const RowNormBackward& c, const Shares& shares, size_t index,
                   const BackwardSums& sums, size_t worker) {
  const size_t problem = index / shares.count;
  const size_t first = index % shares.count * shares.rows;
  const size_t rows = std::min(shares.rows, c.rows - std::min(first, c.rows));
  const float* scale = c.scale ? c.scale + problem * c.scale_problem : nullptr;
  float* share = sums.shares + index * 2 * sums.width;
  float* block = sums.blocks + worker * 2 * sums.width;
  std::memset(share, 0, 2 * sums.width * sizeof(float));
  for (size_t i = 0; i < rows; i += kBlockRows) {
    // The first block's sums need no adding.
    float* to = i == 0 ? share : block;
    float* d_scale = c.d_scale ? to : nullptr;
    float* d_bias = c.d_bias ? to + sums.width : nullptr;
    const size_t count = std::min(kBlockRows, rows - i);
    WithType(c.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      BackwardBlock<T>(c, scale, problem * c.rows + first + i, count, d_scale, d_bias);
    });
    if (i > 0 && d_scale) AddTo(share, d_scale, c.columns);
    if (i > 0 && d_bias) AddTo(share + sums.width, d_bias, c.columns);
  }
}

// The shares of one problem, added up in order; `which` is 0 for scale, 1 for bias.
void SumShares(const RowNormBackward& c, const Shares& shares, size_t problem,
               const BackwardSums& sums, size_t which, float* to) {
  if (to == nullptr) return;
  const float* from =
      sums.shares + (problem * shares.count * 2 + which) * sums.width;
  to += problem * c.columns;
  std::memcpy(to, from, c.columns * sizeof(float));
  for (size_t i = 1; i < shares.count; ++i) {
    AddTo(to, from + i * 2 * sums.width, c.columns);
  }
}

void Backward(const RowNormBackward& c, Workers& workers, void* scratch) {
  const Shares shares(c.rows);
  Arena arena(scratch);
  const size_t tasks = c.problems * shares.count;
  const BackwardSums sums(arena, tasks, c.columns, workers.Count());
  ParallelFor(workers, tasks, [&](size_t task, size_t worker) {
    BackwardShare(c, shares, task, sums, worker);
  });
  if (c.d_scale == nullptr && c.d_bias == nullptr) return;
  ParallelFor(workers, c.problems, [&](size_t problem, size_t) {
    SumShares(c, shares, problem, sums, 0, c.d_scale);
    SumShares(c, shares, problem, sums, 1, c.d_bias);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokumx {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

size_t RowNormBackwardScratch(size_t problems, size_t rows, size_t columns,
                              size_t threads) {
  Arena arena(nullptr);
  BackwardSums(arena, problems * Shares(rows).count, columns, threads);
  return arena.used();
}

void RunRowNorm(const RowNorm& call, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(Forward)(call, workers);
}

void RunRowNormBackward(const RowNormBackward& call, Workers& workers, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Backward)(call, workers, scratch);
}

}  // namespace tokumx
#endif  // HWY_ONCE
