// Products with quantized matrices as custom calls of XLA. Zero points are empty when
// absent; the depth is even for two numbers in a byte.

#include "library.h"
#include "quantized_dot.h"
#include "xla_binding.h"

namespace tokumx {
namespace {

std::optional<QuantKind> KindOf(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::S8:
      return QuantKind::kI8;
    case ffi::DataType::U8:
      return QuantKind::kI4;
    case ffi::DataType::F8E4M3FN:
      return QuantKind::kF8E4M3;
    case ffi::DataType::F8E5M2:
      return QuantKind::kF8E5M2;
    default:
      return std::nullopt;
  }
}

// Numbers from one problem to the next, of an array [B or 1, ...].
size_t ProblemStride(const ffi::AnyBuffer& x) {
  return !IsThere(x) || Dim(x, 0) == 1 ? 0 : x.element_count() / Dim(x, 0);
}

ffi::Error DotCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer values,
                   ffi::AnyBuffer scales, ffi::AnyBuffer zero_points,
                   ffi::Result<ffi::AnyBuffer> out,
                   ffi::Result<ffi::AnyBuffer> scratch, int64_t threads,
                   bool is_transposed) {
  const auto x_dtype = FloatOf(x.element_type());
  const auto kind = KindOf(values.element_type());
  if (!x_dtype.has_value() || !kind.has_value() ||
      scales.element_type() != ffi::DataType::F32) {
    return Refuse("quantized_matmul got an array of another type");
  }
  if (!IsThere(*out)) return ffi::Error::Success();
  QuantizedDot call{};
  call.problems = Dim(*out, 0);
  call.rows = Dim(*out, 1);
  call.x = x.untyped_data();
  call.x_dtype = *x_dtype;
  call.x_problem = ProblemStride(x);
  call.is_transposed = is_transposed;
  call.out = static_cast<float*>(out->untyped_data());
  QuantizedMatrix& w = call.w;
  w.kind = *kind;
  w.depth = Dim(values, 1) * (*kind == QuantKind::kI4 ? 2 : 1);
  w.columns = Dim(values, 2);
  w.groups = Dim(scales, 1);
  w.values = static_cast<const uint8_t*>(values.untyped_data());
  w.values_problem = ProblemStride(values);
  w.scales = static_cast<const float*>(scales.untyped_data());
  w.scales_problem = ProblemStride(scales);
  w.has_column_scales = Dim(scales, 2) > 1;
  w.zero_points = IsThere(zero_points)
                      ? static_cast<const int8_t*>(zero_points.untyped_data())
                      : nullptr;
  w.zero_problem = ProblemStride(zero_points);
  XlaWorkers workers(pool, threads);
  const size_t needed = QuantizedDotScratch(w.depth, w.columns, workers.Count());
  if (scratch->size_bytes() < needed) {
    return Refuse("quantized_matmul's scratch space is too small");
  }
  RunQuantizedDot(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_quantized_dot, DotCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("is_transposed"));

#pragma GCC visibility pop

}  // namespace tokumx

// Bytes of the scratch result.
TOKUMX_EXPORT int64_t tokumx_quantized_dot_scratch(int64_t depth, int64_t columns,
                                                   int64_t threads) {
  return static_cast<int64_t>(tokumx::QuantizedDotScratch(depth, columns, threads));
}
