// Grouped products as custom calls of XLA. The bias is empty when absent.

#include "library.h"
#include "ragged_dot.h"
#include "xla_binding.h"

namespace tokumx {
namespace {

// Of an array [B or 1, ...].
bool OperandOf(const ffi::AnyBuffer& x, RaggedOperand& operand) {
  const auto dtype = FloatOf(x.element_type());
  if (!dtype.has_value()) return false;
  operand = {x.untyped_data(), *dtype,
             Dim(x, 0) == 1 ? 0 : x.element_count() / Dim(x, 0)};
  return true;
}

GroupRows GroupRowsOf(const ffi::AnyBuffer& starts, const ffi::AnyBuffer& ends) {
  return {static_cast<const int32_t*>(starts.untyped_data()),
          static_cast<const int32_t*>(ends.untyped_data()),
          Dim(starts, 0) == 1 ? 0 : Dim(starts, 1)};
}

ffi::Error DotCall(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::AnyBuffer bias, ffi::AnyBuffer starts, ffi::AnyBuffer ends,
                   ffi::Result<ffi::AnyBuffer> out,
                   ffi::Result<ffi::AnyBuffer> scratch, int64_t threads,
                   bool is_transposed) {
  RaggedDot call{};
  const auto out_dtype = FloatOf(out->element_type());
  if (!OperandOf(lhs, call.lhs) || !OperandOf(rhs, call.rhs) ||
      !out_dtype.has_value()) {
    return Refuse("ragged_dot needs f32, bf16 or f16 operands");
  }
  if (IsThere(bias) && !OperandOf(bias, call.bias)) {
    return Refuse("ragged_dot needs an f32 bias");
  }
  call.problems = Dim(*out, 0);
  call.rows = Dim(*out, 1);
  call.columns = Dim(*out, 2);
  call.groups = Dim(rhs, 1);
  call.depth = Dim(lhs, 2);
  call.is_transposed = is_transposed;
  call.groups_rows = GroupRowsOf(starts, ends);
  call.out = out->untyped_data();
  call.out_dtype = *out_dtype;
  XlaWorkers workers(pool, threads);
  const size_t needed = RaggedDotScratch(call.problems, call.rows, call.depth,
                                         call.columns, workers.Count());
  if (scratch->size_bytes() < needed) {
    return Refuse("ragged_dot's scratch space is too small");
  }
  RunRaggedDot(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

ffi::Error ContractingCall(ffi::ThreadPool pool, ffi::AnyBuffer lhs,
                           ffi::AnyBuffer rhs, ffi::AnyBuffer starts,
                           ffi::AnyBuffer ends, ffi::Result<ffi::AnyBuffer> out,
                           ffi::Result<ffi::AnyBuffer> scratch, int64_t threads) {
  RaggedContractingDot call{};
  const auto out_dtype = FloatOf(out->element_type());
  if (!OperandOf(lhs, call.lhs) || !OperandOf(rhs, call.rhs) ||
      !out_dtype.has_value()) {
    return Refuse("ragged_contracting_dot needs f32, bf16 or f16 operands");
  }
  call.problems = Dim(*out, 0);
  call.groups = Dim(*out, 1);
  call.rows = Dim(lhs, 1);
  call.lhs_columns = Dim(lhs, 2);
  call.rhs_columns = Dim(rhs, 2);
  call.groups_rows = GroupRowsOf(starts, ends);
  call.out = out->untyped_data();
  call.out_dtype = *out_dtype;
  XlaWorkers workers(pool, threads);
  const size_t needed =
      RaggedContractingScratch(call.rows, call.rhs_columns, workers.Count());
  if (scratch->size_bytes() < needed) {
    return Refuse("ragged_contracting_dot's scratch space is too small");
  }
  RunRaggedContractingDot(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_ragged_dot, DotCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("is_transposed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_ragged_contracting_dot, ContractingCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads"));

#pragma GCC visibility pop

}  // namespace tokumx

// Bytes of the scratch results.
TOKUMX_EXPORT int64_t tokumx_ragged_dot_scratch(int64_t problems, int64_t rows,
                                                int64_t depth, int64_t columns,
                                                int64_t threads) {
  return static_cast<int64_t>(
      tokumx::RaggedDotScratch(problems, rows, depth, columns, threads));
}

TOKUMX_EXPORT int64_t tokumx_ragged_contracting_dot_scratch(int64_t rows,
                                                            int64_t rhs_columns,
                                                            int64_t threads) {
  return static_cast<int64_t>(
      tokumx::RaggedContractingScratch(rows, rhs_columns, threads));
}
