// Matrix products of operands that lie in a cache.
//
// B is packed in panels of kPanel columns, [N / kPanel][K][kPanel], padded with
// zeros, so that its rows are read with full vectors. A is read one element at a
// time and broadcast, with any strides: a transposed A costs nothing.

#if defined(TOKUMX_NATIVE_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKUMX_NATIVE_GEMM_INL_H_
#undef TOKUMX_NATIVE_GEMM_INL_H_
#else
#define TOKUMX_NATIVE_GEMM_INL_H_
#endif

#include "rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

// Accumulators take kRows x 2 registers, the two vectors of B and a broadcast
// three more: 27 of AVX-512's and NEON's 32, 15 of the 16 elsewhere.
#if HWY_MAX_BYTES == 64 || HWY_TARGET_IS_NEON
constexpr size_t kRows = 12;
#else
constexpr size_t kRows = 6;
#endif

HWY_INLINE size_t PanelWidth() { return 2 * hn::Lanes(F32()); }

// An operand with strides in elements: a(i, k) = data[i * row + k * column].
struct Strided {
  const float* data;
  size_t row;
  size_t column;
};

// Panels of B: panel p starts at data + p * panel, its rows are `row` apart.
struct Panels {
  const float* data;
  size_t row;
  size_t panel;
};

// c[0 .. R)[0 .. V vectors) (+)= a[0 .. R)[0 .. depth) b[0 .. depth)[V vectors)
template <size_t R, size_t V>
HWY_INLINE void MicroKernel(size_t depth, const Strided& a, const float* b,
                            size_t b_row, float* c, size_t c_row,
                            bool accumulate) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  VF sum[R][V];
  HWY_UNROLL(12)
  for (size_t i = 0; i < R; ++i) {
    for (size_t v = 0; v < V; ++v) sum[i][v] = hn::Zero(d);
  }
  const float* a_k = a.data;
  for (size_t k = 0; k < depth; ++k) {
    VF row[V];
    for (size_t v = 0; v < V; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    b += b_row;
    HWY_UNROLL(12)
    for (size_t i = 0; i < R; ++i) {
      const VF x = hn::Set(d, a_k[i * a.row]);
      for (size_t v = 0; v < V; ++v) sum[i][v] = hn::MulAdd(x, row[v], sum[i][v]);
    }
    a_k += a.column;
  }
  HWY_UNROLL(12)
  for (size_t i = 0; i < R; ++i) {
    float* to = c + i * c_row;
    for (size_t v = 0; v < V; ++v) {
      if (accumulate) sum[i][v] = hn::Add(sum[i][v], hn::LoadU(d, to + v * lanes));
      hn::StoreU(sum[i][v], d, to + v * lanes);
    }
  }
}

template <size_t R, size_t V>
HWY_INLINE void LastRows(size_t rows, size_t depth, const Strided& a,
                         const float* b, size_t b_row, float* c, size_t c_row,
                         bool accumulate) {
  if constexpr (R > 0) {
    if (rows == R) {
      MicroKernel<R, V>(depth, a, b, b_row, c, c_row, accumulate);
    } else {
      LastRows<R - 1, V>(rows, depth, a, b, b_row, c, c_row, accumulate);
    }
  }
}

// c[rows][V vectors] (+)= a[rows][depth] b[depth][V vectors]
template <size_t V>
HWY_INLINE void GemmPanel(size_t rows, size_t depth, Strided a, const float* b,
                          size_t b_row, float* c, size_t c_row, bool accumulate) {
  size_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    MicroKernel<kRows, V>(depth, a, b, b_row, c + i * c_row, c_row, accumulate);
    a.data += kRows * a.row;
  }
  LastRows<kRows - 1, V>(rows - i, depth, a, b, b_row, c + i * c_row, c_row,
                         accumulate);
}

// c[rows][columns] (+)= a[rows][depth] b[depth][columns]; columns is a multiple
// of PanelWidth().
HWY_INLINE void Gemm(size_t rows, size_t columns, size_t depth, const Strided& a,
                     const Panels& b, float* c, size_t c_row, bool accumulate) {
  const size_t width = PanelWidth();
  for (size_t j = 0; j < columns / width; ++j) {
    GemmPanel<2>(rows, depth, a, b.data + j * b.panel, b.row, c + j * width, c_row,
                 accumulate);
  }
}

// Packs `rows` rows of length `depth` as columns of panels: the transpose,
// [padded / width][depth][width], columns from `rows` to `padded` zero.
// `row` gives the float row i, valid until the next call.
template <class RowFn>
HWY_INLINE void PackTransposed(size_t rows, size_t padded, size_t depth,
                               const RowFn& row, float* to) {
  const size_t width = PanelWidth();
  for (size_t i = 0; i < padded; ++i) {
    float* column = to + i / width * depth * width + i % width;
    if (i < rows) {
      const float* from = row(i);
      for (size_t k = 0; k < depth; ++k) column[k * width] = from[k];
    } else {
      for (size_t k = 0; k < depth; ++k) column[k * width] = 0.0f;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#endif  // TOKUMX_NATIVE_GEMM_INL_H_
