// Rows of numbers: conversion to and from float, sums, maxima.
// Per-target include guard, as Highway wants it.

#if defined(TOKUMX_NATIVE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKUMX_NATIVE_ROWS_INL_H_
#undef TOKUMX_NATIVE_ROWS_INL_H_
#else
#define TOKUMX_NATIVE_ROWS_INL_H_
#endif

#include <cmath>
#include <cstring>

#include "dtype.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;
using I32 = hn::RebindToSigned<F32>;
using VI = hn::Vec<I32>;

template <class T>
HWY_INLINE VF LoadF(const T* from);
template <>
HWY_INLINE VF LoadF(const float* from) {
  return hn::LoadU(F32(), from);
}
template <>
HWY_INLINE VF LoadF(const hwy::bfloat16_t* from) {
  const hn::Rebind<hwy::bfloat16_t, F32> narrow;
  return hn::PromoteTo(F32(), hn::LoadU(narrow, from));
}
template <>
HWY_INLINE VF LoadF(const hwy::float16_t* from) {
  const hn::Rebind<hwy::float16_t, F32> narrow;
  return hn::PromoteTo(F32(), hn::LoadU(narrow, from));
}

template <>
HWY_INLINE VF LoadF(const int8_t* from) {
  const hn::Rebind<int8_t, F32> narrow;
  return hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(narrow, from)));
}

// The two 8-bit formats of OCP OFP8; e4m3fn has no infinities.
struct F8E4M3 {
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};

using F16 = hn::Rebind<hwy::float16_t, F32>;
using U16 = hn::Rebind<uint16_t, F32>;

template <class T>
HWY_INLINE hn::Vec<U16> LoadBits(const T* from) {
  const hn::Rebind<uint8_t, F32> bytes;
  const auto* raw = reinterpret_cast<const uint8_t*>(from);
  return hn::PromoteTo(U16(), hn::LoadU(bytes, raw));
}
template <>
HWY_INLINE VF LoadF(const F8E5M2* from) {
  const auto bits = hn::ShiftLeft<8>(LoadBits(from));
  return hn::PromoteTo(F32(), hn::BitCast(F16(), bits));
}
// As f16, exponent and mantissa are those of the number / 2^8, subnormals too:
// the conversion from f16 keeps them even where the processor flushes f32's.
template <>
HWY_INLINE VF LoadF(const F8E4M3* from) {
  const U16 d;
  const F32 df;
  const auto x = LoadBits(from);
  const auto magnitude = hn::And(x, hn::Set(d, uint16_t{0x7f}));
  const auto sign = hn::ShiftLeft<8>(hn::And(x, hn::Set(d, uint16_t{0x80})));
  const auto bits = hn::Or(hn::ShiftLeft<7>(magnitude), sign);
  const auto nan = hn::Eq(magnitude, hn::Set(d, uint16_t{0x7f}));
  const auto safe = hn::IfThenElse(nan, hn::Set(d, uint16_t{0x7e00}), bits);
  const VF small = hn::PromoteTo(df, hn::BitCast(F16(), safe));
  return hn::Mul(small, hn::Set(df, 256.0f));
}

HWY_INLINE void StoreF(VF v, float* to) { hn::StoreU(v, F32(), to); }
HWY_INLINE void StoreF(VF v, hwy::bfloat16_t* to) {
  const hn::Rebind<hwy::bfloat16_t, F32> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, to);
}
HWY_INLINE void StoreF(VF v, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, F32> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, to);
}

template <class T>
HWY_INLINE float ToFloat(T x) {
  return hwy::ConvertScalarTo<float>(x);
}
template <>
HWY_INLINE float ToFloat(F8E5M2 x) {
  return hwy::F32FromF16(hwy::float16_t::FromBits(static_cast<uint16_t>(x.bits << 8)));
}
template <>
HWY_INLINE float ToFloat(F8E4M3 x) {
  const uint16_t magnitude = x.bits & 0x7f;
  const uint16_t sign = static_cast<uint16_t>((x.bits & 0x80) << 8);
  const uint16_t bits = magnitude == 0x7f
                            ? uint16_t{0x7e00}
                            : static_cast<uint16_t>(magnitude << 7 | sign);
  return 256.0f * hwy::F32FromF16(hwy::float16_t::FromBits(bits));
}
HWY_INLINE void FromFloat(float x, float* to) { *to = x; }
HWY_INLINE void FromFloat(float x, hwy::bfloat16_t* to) {
  *to = hwy::BF16FromF32(x);
}
HWY_INLINE void FromFloat(float x, hwy::float16_t* to) {
  *to = hwy::F16FromF32(x);
}

// Calls fn with a null pointer of the dtype's type: f32, bf16 or f16.
template <class Fn>
HWY_INLINE void WithType(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(static_cast<float*>(nullptr));
    case DType::kBF16:
      return fn(static_cast<hwy::bfloat16_t*>(nullptr));
    default:
      return fn(static_cast<hwy::float16_t*>(nullptr));
  }
}

// to[0 .. n) = from[0 .. n) as float; to[n .. padded) = 0.
template <class T>
HWY_INLINE void ReadRow(const T* from, size_t n, size_t padded, float* to) {
  const size_t lanes = hn::Lanes(F32());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF(LoadF(from + i), to + i);
  for (; i < n; ++i) to[i] = ToFloat(from[i]);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// The same times `scale`, from memory of any type.
template <class T>
HWY_INLINE void ReadScaled(const void* from, size_t n, size_t padded, float scale,
                           float* to) {
  ReadRow(static_cast<const T*>(from), n, padded, to);
  if (scale != 1.0f) {
    const F32 d;
    for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, to + i), hn::Set(d, scale)), d, to + i);
    }
  }
}

HWY_INLINE void ReadAny(DType dtype, const void* from, size_t n, size_t padded,
                        float scale, float* to) {
  switch (dtype) {
    case DType::kF32:
      return ReadScaled<float>(from, n, padded, scale, to);
    case DType::kBF16:
      return ReadScaled<hwy::bfloat16_t>(from, n, padded, scale, to);
    case DType::kF16:
      return ReadScaled<hwy::float16_t>(from, n, padded, scale, to);
    case DType::kI8:
      return ReadScaled<int8_t>(from, n, padded, scale, to);
    case DType::kF8E4M3:
      return ReadScaled<F8E4M3>(from, n, padded, scale, to);
    case DType::kF8E5M2:
      return ReadScaled<F8E5M2>(from, n, padded, scale, to);
  }
}

// to[0 .. n) = scale * from[0 .. n), rounded once.
template <class T>
HWY_INLINE void WriteRow(const float* from, float scale, size_t n, T* to) {
  const size_t lanes = hn::Lanes(F32());
  const VF factor = hn::Set(F32(), scale);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    StoreF(hn::Mul(factor, hn::LoadU(F32(), from + i)), to + i);
  }
  for (; i < n; ++i) FromFloat(scale * from[i], to + i);
}

HWY_INLINE void ScaleRow(float* row, float scale, size_t padded) {
  const VF factor = hn::Set(F32(), scale);
  for (size_t i = 0; i < padded; i += hn::Lanes(F32())) {
    StoreF(hn::Mul(factor, hn::LoadU(F32(), row + i)), row + i);
  }
}

HWY_INLINE float SumOf(VF v) { return hn::ReduceSum(F32(), v); }
HWY_INLINE float MaxOf(VF v) { return hn::ReduceMax(F32(), v); }

// Sums vectors of products, then their lanes.
HWY_INLINE float DotRow(const float* a, const float* b, size_t padded) {
  const F32 d;
  VF sum = hn::Zero(d);
  for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  return SumOf(sum);
}

// Adds one product after the other, as the micro kernel does for each element.
HWY_INLINE float DotInOrder(const float* a, const float* b, size_t n) {
  const hn::CappedTag<float, 1> d;
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < n; ++i) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  return hn::GetLane(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#endif  // TOKUMX_NATIVE_ROWS_INL_H_
