// Packing of a matrix in memory, of any float type, into panels for the micro
// kernel: [columns / width][depth][width], columns padded with zeros.

#if defined(TOKUMX_NATIVE_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKUMX_NATIVE_PACK_INL_H_
#undef TOKUMX_NATIVE_PACK_INL_H_
#else
#define TOKUMX_NATIVE_PACK_INL_H_
#endif

#include "gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

// From depth rows of `columns` numbers, `row` numbers apart.
template <class T>
HWY_INLINE void PackRows(const T* from, size_t row, size_t depth, size_t columns,
                         float* to) {
  const size_t width = PanelWidth(), lanes = hn::Lanes(F32());
  for (size_t k = 0; k < depth; ++k, from += row) {
    float* at = to + k * width;
    size_t j = 0;
    for (; j + width <= columns; j += width, at += depth * width) {
      StoreF(LoadF(from + j), at);
      StoreF(LoadF(from + j + lanes), at + lanes);
    }
    if (j < columns) ReadRow(from + j, columns - j, width, at);
  }
}

using Four = hn::FixedTag<float, 4>;

HWY_INLINE hn::Vec<Four> LoadFour(const float* from) {
  return hn::LoadU(Four(), from);
}
template <class T>
HWY_INLINE hn::Vec<Four> LoadFour(const T* from) {
  return hn::PromoteTo(Four(), hn::LoadU(hn::Rebind<T, Four>(), from));
}

// Block b of the vector, 16 bytes, holds four numbers of row 4 * b.
template <class T>
HWY_INLINE VF LoadBlocks(const T* from, size_t row) {
  constexpr size_t kBlocks = HWY_MAX_LANES_D(F32) / 4;
  VF v = hn::ResizeBitCast(F32(), LoadFour(from));
  if constexpr (kBlocks > 1) v = hn::InsertBlock<1>(v, LoadFour(from + 4 * row));
  if constexpr (kBlocks > 2) {
    v = hn::InsertBlock<2>(v, LoadFour(from + 8 * row));
    v = hn::InsertBlock<3>(v, LoadFour(from + 12 * row));
  }
  return v;
}

// to[j * width + r] = from[r * row + j] for j < 4 and r < lanes: with row 4 * b + i
// in block b of vector i, each block is transposed by itself.
template <class T>
HWY_INLINE void TransposeFour(const T* from, size_t row, size_t width, float* to) {
  const F32 d;
  const hn::Repartition<double, F32> pairs;
  const VF a = LoadBlocks(from, row), b = LoadBlocks(from + row, row);
  const VF c = LoadBlocks(from + 2 * row, row), e = LoadBlocks(from + 3 * row, row);
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
  StoreF(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ce_low)), to);
  StoreF(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ce_low)), to + width);
  to += 2 * width;
  StoreF(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ce_high)), to);
  StoreF(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ce_high)), to + width);
}

// From the transpose: `columns` rows of `depth` numbers, `row` numbers apart.
template <class T>
HWY_INLINE void PackColumns(const T* from, size_t row, size_t depth, size_t columns,
                            float* to) {
  const size_t width = PanelWidth(), lanes = hn::Lanes(F32());
  const size_t padded = RoundUp(columns, width);
  for (size_t j = 0; j < padded; j += lanes) {
    float* panel = to + j / width * depth * width + j % width;
    const T* rows = from + j * row;
    size_t k = 0;
    if (j + lanes <= columns) {
      for (; k + 4 <= depth; k += 4) {
        TransposeFour(rows + k, row, width, panel + k * width);
      }
    }
    for (; k < depth; ++k) {
      for (size_t i = 0; i < lanes; ++i) {
        panel[k * width + i] = j + i < columns ? ToFloat(rows[i * row + k]) : 0.0f;
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#endif  // TOKUMX_NATIVE_PACK_INL_H_
