// Norms of rows as custom calls of XLA. Optional operands and results are empty when
// absent.

#include "library.h"
#include "normalization.h"
#include "xla_binding.h"

namespace tokumx {
namespace {

void* DataOrNull(const ffi::AnyBuffer& x) {
  return IsThere(x) ? x.untyped_data() : nullptr;
}

// Of a parameter [B or 1, D].
size_t ProblemStride(const ffi::AnyBuffer& x) {
  return Dim(x, 0) == 1 ? 0 : Dim(x, 1);
}

ffi::Error ForwardCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer residual,
                       ffi::AnyBuffer scale, ffi::AnyBuffer bias,
                       ffi::Result<ffi::AnyBuffer> out,
                       ffi::Result<ffi::AnyBuffer> total,
                       ffi::Result<ffi::AnyBuffer> rstd,
                       ffi::Result<ffi::AnyBuffer> mean, int64_t threads, float eps,
                       bool is_centered) {
  const auto dtype = FloatOf(x.element_type());
  if (!dtype.has_value()) return Refuse("a norm needs f32, bf16 or f16 rows");
  if (!IsThere(x)) return ffi::Error::Success();
  RowNorm call{};
  call.problems = Dim(x, 0);
  call.rows = Dim(x, 1);
  call.columns = Dim(x, 2);
  call.dtype = *dtype;
  call.x = x.untyped_data();
  call.residual = DataOrNull(residual);
  call.scale = FloatsOrNull(scale);
  call.scale_problem = ProblemStride(scale);
  call.bias = FloatsOrNull(bias);
  call.bias_problem = ProblemStride(bias);
  call.eps = eps;
  call.is_centered = is_centered;
  call.out = out->untyped_data();
  call.total = DataOrNull(*total);
  call.rstd = FloatsOrNull(rstd);
  call.mean = FloatsOrNull(mean);
  XlaWorkers workers(pool, threads);
  RunRowNorm(call, workers);
  return ffi::Error::Success();
}

ffi::Error BackwardCall(ffi::ThreadPool pool, ffi::AnyBuffer total, ffi::AnyBuffer ct,
                        ffi::AnyBuffer ct_total, ffi::AnyBuffer scale,
                        ffi::AnyBuffer rstd, ffi::AnyBuffer mean,
                        ffi::Result<ffi::AnyBuffer> dx,
                        ffi::Result<ffi::AnyBuffer> d_scale,
                        ffi::Result<ffi::AnyBuffer> d_bias,
                        ffi::Result<ffi::AnyBuffer> scratch, int64_t threads) {
  const auto dtype = FloatOf(total.element_type());
  if (!dtype.has_value()) return Refuse("a norm needs f32, bf16 or f16 rows");
  RowNormBackward call{};
  call.problems = Dim(total, 0);
  call.rows = Dim(total, 1);
  call.columns = Dim(total, 2);
  call.dtype = *dtype;
  call.total = total.untyped_data();
  call.ct = ct.untyped_data();
  call.ct_total = DataOrNull(ct_total);
  call.scale = FloatsOrNull(scale);
  call.scale_problem = ProblemStride(scale);
  call.rstd = static_cast<const float*>(rstd.untyped_data());
  call.mean = FloatsOrNull(mean);
  call.dx = dx->untyped_data();
  call.d_scale = FloatsOrNull(d_scale);
  call.d_bias = FloatsOrNull(d_bias);
  XlaWorkers workers(pool, threads);
  const size_t needed = RowNormBackwardScratch(call.problems, call.rows, call.columns,
                                               workers.Count());
  if (scratch->size_bytes() < needed) {
    return Refuse("a norm's scratch space is too small");
  }
  RunRowNormBackward(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_row_norm, ForwardCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads")
                                  .Attr<float>("eps")
                                  .Attr<bool>("is_centered"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_row_norm_backward, BackwardCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads"));

#pragma GCC visibility pop

}  // namespace tokumx

// Bytes of the scratch result.
TOKUMX_EXPORT int64_t tokumx_row_norm_backward_scratch(int64_t problems, int64_t rows,
                                                       int64_t columns,
                                                       int64_t threads) {
  return static_cast<int64_t>(
      tokumx::RowNormBackwardScratch(problems, rows, columns, threads));
}
