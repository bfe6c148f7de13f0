// What the bindings to XLA share: its thread pool and element types.

#ifndef TOKUMX_NATIVE_XLA_BINDING_H_
#define TOKUMX_NATIVE_XLA_BINDING_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "dtype.h"
#include "workers.h"
#include "xla/ffi/api/ffi.h"

namespace tokumx {

namespace ffi = xla::ffi;

class XlaWorkers final : public Workers {
 public:
  // At most `limit` threads: scratch space was made for so many.
  XlaWorkers(ffi::ThreadPool& pool, int64_t limit)
      : pool_(pool),
        count_(std::max<int64_t>(std::min(pool.num_threads(), limit), 1)) {}

  size_t Count() const override { return count_; }
  void Schedule(std::function<void()> fn) override {
    pool_.Schedule(std::move(fn));
  }

 private:
  ffi::ThreadPool& pool_;
  size_t count_;
};

inline std::optional<DType> FloatOf(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F32:
      return DType::kF32;
    case ffi::DataType::BF16:
      return DType::kBF16;
    case ffi::DataType::F16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

// The types that a cache or a quantized weight may be stored in.
inline std::optional<DType> StorageOf(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::S8:
      return DType::kI8;
    case ffi::DataType::F8E4M3FN:
      return DType::kF8E4M3;
    case ffi::DataType::F8E5M2:
      return DType::kF8E5M2;
    default:
      return FloatOf(dtype);
  }
}

inline size_t Dim(const ffi::AnyBuffer& x, size_t axis) {
  return static_cast<size_t>(x.dimensions()[axis]);
}

// An optional operand is there unless it has no elements.
inline bool IsThere(const ffi::AnyBuffer& x) { return x.element_count() > 0; }

inline const float* FloatsOrNull(const ffi::AnyBuffer& x) {
  return IsThere(x) ? static_cast<const float*>(x.untyped_data()) : nullptr;
}

inline float* FloatsOrNull(ffi::Result<ffi::AnyBuffer>& x) {
  return IsThere(*x) ? static_cast<float*>(x->untyped_data()) : nullptr;
}

inline ffi::Error Refuse(const char* message) {
  return ffi::Error::InvalidArgument(std::string("tokumx: ") + message);
}

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_XLA_BINDING_H_
