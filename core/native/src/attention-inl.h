// One tile of logits: masks, bias, soft cap, softmax weights.

#if defined(TOKUMX_NATIVE_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKUMX_NATIVE_ATTENTION_INL_H_
#undef TOKUMX_NATIVE_ATTENTION_INL_H_
#else
#define TOKUMX_NATIVE_ATTENTION_INL_H_
#endif

#include <limits>

#include "attention.h"
#include "attention_tiles.h"
#include "gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

HWY_INLINE VF ExpF(VF x) { return hn::Exp(F32(), x); }

inline float FiniteOrZero(float m) { return m == kMinusInf ? 0.0f : m; }

// Clamps a 64-bit bound to int32, where every position lies.
inline int32_t ToPosition(int64_t bound) {
  return static_cast<int32_t>(std::clamp<int64_t>(bound, INT32_MIN, INT32_MAX));
}

// The mask of one row of a tile: query t of head n against keys [k, k + nk).
class RowMask {
 public:
  RowMask(const AttentionMask& mask, size_t batch, size_t head, size_t t, size_t k,
          size_t nk)
      : keys_(nk) {
    if (mask.has_upper || mask.has_lower) {
      const int32_t position = mask.query_position.Of(batch)[t];
      position_ = mask.key_position.Of(batch) + k;
      upper_ = ToPosition(Upper(mask, position));
      lower_ = ToPosition(Lower(mask, position));
    }
    if (mask.query_segment.data != nullptr) {
      segment_ = mask.key_segment.Of(batch) + k;
      own_segment_ = mask.query_segment.Of(batch)[t];
    }
    if (mask.query_length.data != nullptr &&
        static_cast<int64_t>(t) >= *mask.query_length.Of(batch)) {
      keys_ = 0;
    }
    if (mask.key_length.data != nullptr) {
      const int64_t left = *mask.key_length.Of(batch) - static_cast<int64_t>(k);
      keys_ = std::min<size_t>(keys_, std::max<int64_t>(left, 0));
    }
    if (mask.visible.data != nullptr) {
      const LogitsLike& v = mask.visible;
      visible_ = static_cast<const uint8_t*>(v.data) + batch * v.batch +
                 head * v.head + t * v.query + k * v.key;
      if (v.key == 0) {
        if (*visible_ == 0) keys_ = 0;
        visible_ = nullptr;
      }
    }
  }

  // Writes `masked` over the entries of row[0 .. padded) that are not visible.
  HWY_INLINE void Apply(float masked, float* row, size_t padded) const {
    const F32 d;
    const I32 di;
    const size_t lanes = hn::Lanes(d);
    const VF fill = hn::Set(d, masked);
    const VI upper = hn::Set(di, upper_), lower = hn::Set(di, lower_);
    const VI own = hn::Set(di, own_segment_);
    size_t s = 0;
    for (; s + lanes <= keys_; s += lanes) {
      auto keep = hn::Eq(upper, upper);
      if (position_ != nullptr) {
        const VI p = hn::LoadU(di, position_ + s);
        keep = hn::And(hn::Le(p, upper), hn::Ge(p, lower));
      }
      if (segment_ != nullptr) {
        keep = hn::And(keep, hn::Eq(hn::LoadU(di, segment_ + s), own));
      }
      if (visible_ != nullptr) {
        const hn::Rebind<uint8_t, I32> bytes;
        const VI v = hn::PromoteTo(di, hn::LoadU(bytes, visible_ + s));
        keep = hn::And(keep, hn::Ne(v, hn::Zero(di)));
      }
      const VF x = hn::LoadU(d, row + s);
      hn::StoreU(hn::IfThenElse(hn::RebindMask(d, keep), x, fill), d, row + s);
    }
    for (; s < keys_; ++s) {
      if (!Sees(s)) row[s] = masked;
    }
    for (s = keys_; s < padded; ++s) row[s] = masked;
  }

 private:
  bool Sees(size_t s) const {
    return (position_ == nullptr ||
            (position_[s] <= upper_ && position_[s] >= lower_)) &&
           (segment_ == nullptr || segment_[s] == own_segment_) &&
           (visible_ == nullptr || visible_[s] != 0);
  }

  size_t keys_;
  const int32_t* position_ = nullptr;
  int32_t upper_ = 0, lower_ = 0;
  const int32_t* segment_ = nullptr;
  int32_t own_segment_ = 0;
  const uint8_t* visible_ = nullptr;
};

// row = cap(scale * row + bias), in place, for logits kept in units of 1.
template <class B>
HWY_INLINE void AddBias(const B* bias, size_t step, size_t nk, float* row) {
  const F32 d;
  size_t s = 0;
  if (step == 0) {
    const VF b = hn::Set(d, ToFloat(*bias));
    for (; s + hn::Lanes(d) <= nk; s += hn::Lanes(d)) {
      hn::StoreU(hn::Add(hn::LoadU(d, row + s), b), d, row + s);
    }
  } else {
    for (; s + hn::Lanes(d) <= nk; s += hn::Lanes(d)) {
      hn::StoreU(hn::Add(hn::LoadU(d, row + s), LoadF(bias + s)), d, row + s);
    }
  }
  for (; s < nk; ++s) row[s] += ToFloat(bias[s * step]);
}

HWY_INLINE void AddBiasRow(const AttentionLogits& logits, size_t batch, size_t head,
                           size_t t, size_t k, size_t nk, float* row) {
  const LogitsLike& b = logits.bias;
  const size_t at =
      batch * b.batch + head * b.head + t * b.query + k * b.key;
  switch (logits.bias_dtype) {
    case DType::kF32:
      return AddBias(static_cast<const float*>(b.data) + at, b.key, nk, row);
    case DType::kBF16:
      return AddBias(static_cast<const hwy::bfloat16_t*>(b.data) + at, b.key, nk,
                     row);
    default:
      return AddBias(static_cast<const hwy::float16_t*>(b.data) + at, b.key, nk,
                     row);
  }
}

HWY_INLINE void CapRow(float cap, float* row, size_t padded) {
  const F32 d;
  const VF c = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap);
  for (size_t s = 0; s < padded; s += hn::Lanes(d)) {
    const VF x = hn::Mul(hn::LoadU(d, row + s), inverse);
    hn::StoreU(hn::Mul(c, hn::Tanh(d, x)), d, row + s);
  }
}

// From products to logits, both in a tile's row of nk entries.
HWY_INLINE void LogitsRow(const AttentionLogits& logits, size_t batch, size_t head,
                          size_t t, size_t k, size_t nk, size_t padded, float* row) {
  if (logits.is_raw) return;
  ScaleRow(row, logits.scale, padded);
  if (logits.bias.data != nullptr) AddBiasRow(logits, batch, head, t, k, nk, row);
  if (logits.soft_cap > 0) CapRow(logits.soft_cap, row, padded);
}

HWY_INLINE float MaxOfRow(const float* row, size_t padded) {
  const F32 d;
  VF most = hn::Set(d, kMinusInf);
  for (size_t s = 0; s < padded; s += hn::Lanes(d)) {
    most = hn::Max(most, hn::LoadU(d, row + s));
  }
  return MaxOf(most);
}

// row = exp((row - shift) * unit); returns its sum.
HWY_INLINE float ExpRow(float shift, float unit, float* row, size_t padded) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const VF m = hn::Set(d, shift), u = hn::Set(d, unit);
  VF even = hn::Zero(d), odd = hn::Zero(d);
  for (size_t s = 0; s < padded; s += 2 * lanes) {
    const VF a = ExpF(hn::Mul(hn::Sub(hn::LoadU(d, row + s), m), u));
    const VF b = ExpF(hn::Mul(hn::Sub(hn::LoadU(d, row + s + lanes), m), u));
    even = hn::Add(even, a);
    odd = hn::Add(odd, b);
    hn::StoreU(a, d, row + s);
    hn::StoreU(b, d, row + s + lanes);
  }
  return SumOf(hn::Add(even, odd));
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#endif  // TOKUMX_NATIVE_ATTENTION_INL_H_
