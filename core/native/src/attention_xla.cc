// Attention as custom calls of XLA. Optional operands are empty when absent.

#include "attention.h"
#include "library.h"
#include "xla_binding.h"

namespace tokumx {
namespace {

Rows RowsOf(const ffi::AnyBuffer& x) {
  if (!IsThere(x)) return {};
  return {static_cast<const int32_t*>(x.untyped_data()),
          Dim(x, 0) == 1 ? 0 : Dim(x, 1)};
}

LogitsLike LogitsLikeOf(const ffi::AnyBuffer& x) {
  if (!IsThere(x)) return {};
  LogitsLike out;
  out.data = x.untyped_data();
  size_t* const strides[] = {&out.batch, &out.head, &out.query, &out.key};
  size_t step = 1;
  for (size_t axis = 4; axis-- > 0;) {
    *strides[axis] = Dim(x, axis) == 1 ? 0 : step;
    step *= Dim(x, axis);
  }
  return out;
}

bool ShapeOf(const ffi::AnyBuffer& query, const ffi::AnyBuffer& key,
             const ffi::AnyBuffer& value, AttentionShape& shape) {
  const auto dtype = FloatOf(query.element_type());
  if (!dtype.has_value()) return false;
  shape = {Dim(query, 0), Dim(query, 1), Dim(key, 1),   Dim(query, 2),
           Dim(key, 2),   Dim(query, 3), Dim(value, 3), *dtype};
  return shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0;
}

// The operands that say who sees whom, in the order of both calls.
struct MaskOperands {
  ffi::AnyBuffer query_position, key_position, query_segment, key_segment;
  ffi::AnyBuffer query_length, key_length, visible;
};

struct MaskBounds {
  bool has_upper, has_lower;
  int64_t upper, lower;
};

AttentionMask MaskOf(const MaskOperands& x, const MaskBounds& bounds) {
  AttentionMask mask;
  mask.has_upper = bounds.has_upper;
  mask.has_lower = bounds.has_lower;
  mask.upper = static_cast<int32_t>(bounds.upper);
  mask.lower = static_cast<int32_t>(bounds.lower);
  mask.query_position = RowsOf(x.query_position);
  mask.key_position = RowsOf(x.key_position);
  mask.query_segment = RowsOf(x.query_segment);
  mask.key_segment = RowsOf(x.key_segment);
  mask.query_length = RowsOf(x.query_length);
  mask.key_length = RowsOf(x.key_length);
  mask.visible = LogitsLikeOf(x.visible);
  return mask;
}

AttentionLogits LogitsOf(float scale, float unit, float soft_cap, bool is_raw) {
  AttentionLogits logits;
  logits.is_raw = is_raw;
  logits.scale = scale;
  logits.unit = unit;
  logits.soft_cap = soft_cap;
  return logits;
}

ffi::Error ForwardCall(
    ffi::ThreadPool pool, ffi::AnyBuffer query,
    ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer query_position,
    ffi::AnyBuffer key_position, ffi::AnyBuffer query_segment,
    ffi::AnyBuffer key_segment, ffi::AnyBuffer query_length,
    ffi::AnyBuffer key_length, ffi::AnyBuffer visible, ffi::AnyBuffer bias,
    ffi::AnyBuffer sinks, ffi::Result<ffi::AnyBuffer> out,
    ffi::Result<ffi::AnyBuffer> out_wide, ffi::Result<ffi::AnyBuffer> lse,
    ffi::Result<ffi::AnyBuffer> row_max, ffi::Result<ffi::AnyBuffer> row_sum,
    ffi::Result<ffi::AnyBuffer> scratch, int64_t threads, float scale, float unit, float soft_cap, bool is_raw, bool has_upper, bool has_lower,
    int64_t upper, int64_t lower) {
  AttentionForward call;
  if (!ShapeOf(query, key, value, call.shape)) {
    return Refuse("attention needs f32, bf16 or f16 operands");
  }
  call.mask = MaskOf({query_position, key_position, query_segment, key_segment,
                      query_length, key_length, visible},
                     {has_upper, has_lower, upper, lower});
  call.logits = LogitsOf(scale, unit, soft_cap, is_raw);
  call.logits.bias = LogitsLikeOf(bias);
  call.logits.bias_dtype = FloatOf(bias.element_type()).value_or(DType::kF32);
  call.logits.sinks = FloatsOrNull(sinks);
  call.logits.sinks_stride =
      IsThere(sinks) && Dim(sinks, 0) > 1 ? Dim(sinks, 1) : 0;
  call.query = query.untyped_data();
  call.key = key.untyped_data();
  call.value = value.untyped_data();
  call.out = out->untyped_data();
  call.out_wide = FloatsOrNull(out_wide);
  call.lse = FloatsOrNull(lse);
  call.row_max = FloatsOrNull(row_max);
  call.row_sum = FloatsOrNull(row_sum);
  XlaWorkers workers(pool, threads);
  if (scratch->size_bytes() <
      AttentionForwardScratch(call.shape, workers.Count())) {
    return Refuse("attention's scratch space is too small");
  }
  RunAttentionForward(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

ffi::Error BackwardCall(
    ffi::ThreadPool pool, ffi::AnyBuffer query,
    ffi::AnyBuffer key, ffi::AnyBuffer value, ffi::AnyBuffer query_position,
    ffi::AnyBuffer key_position, ffi::AnyBuffer query_segment,
    ffi::AnyBuffer key_segment, ffi::AnyBuffer query_length,
    ffi::AnyBuffer key_length, ffi::AnyBuffer visible, ffi::AnyBuffer out_wide,
    ffi::AnyBuffer row_max, ffi::AnyBuffer row_sum, ffi::AnyBuffer d_out,
    ffi::AnyBuffer d_lse, ffi::Result<ffi::AnyBuffer> d_query,
    ffi::Result<ffi::AnyBuffer> d_key, ffi::Result<ffi::AnyBuffer> d_value,
    ffi::Result<ffi::AnyBuffer> scratch, int64_t threads, float scale, float unit, float soft_cap, bool is_raw, bool has_upper, bool has_lower,
    int64_t upper, int64_t lower) {
  AttentionBackward call;
  if (!ShapeOf(query, key, value, call.shape)) {
    return Refuse("attention needs f32, bf16 or f16 operands");
  }
  call.mask = MaskOf({query_position, key_position, query_segment, key_segment,
                      query_length, key_length, visible},
                     {has_upper, has_lower, upper, lower});
  call.logits = LogitsOf(scale, unit, soft_cap, is_raw);
  call.query = query.untyped_data();
  call.key = key.untyped_data();
  call.value = value.untyped_data();
  call.out_wide = FloatsOrNull(out_wide);
  call.row_max = FloatsOrNull(row_max);
  call.row_sum = FloatsOrNull(row_sum);
  call.d_out = d_out.untyped_data();
  call.d_lse = FloatsOrNull(d_lse);
  call.d_query = d_query->untyped_data();
  call.d_key = d_key->untyped_data();
  call.d_value = d_value->untyped_data();
  XlaWorkers workers(pool, threads);
  if (scratch->size_bytes() <
      AttentionBackwardScratch(call.shape, workers.Count())) {
    return Refuse("attention's scratch space is too small");
  }
  RunAttentionBackward(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

template <class Binding>
auto WithAttributes(Binding binding) {
  return std::move(binding)
      .template Attr<int64_t>("threads")
      .template Attr<float>("scale")
      .template Attr<float>("unit")
      .template Attr<float>("soft_cap")
      .template Attr<bool>("is_raw")
      .template Attr<bool>("has_upper")
      .template Attr<bool>("has_lower")
      .template Attr<int64_t>("upper")
      .template Attr<int64_t>("lower");
}

#define TOKUMX_ARGS_4(x)                                       \
  x.Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>() \
      .Arg<ffi::AnyBuffer>()
#define TOKUMX_RETS_3(x) \
  x.Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    tokumx_attention_forward, ForwardCall,
    WithAttributes(TOKUMX_RETS_3(TOKUMX_ARGS_4(TOKUMX_ARGS_4(TOKUMX_ARGS_4(
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()))))
                       .Ret<ffi::AnyBuffer>()
                       .Ret<ffi::AnyBuffer>()
                       .Ret<ffi::AnyBuffer>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    tokumx_attention_backward, BackwardCall,
    WithAttributes(TOKUMX_RETS_3(TOKUMX_ARGS_4(TOKUMX_ARGS_4(TOKUMX_ARGS_4(
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>())))
                                     .Arg<ffi::AnyBuffer>()
                                     .Arg<ffi::AnyBuffer>()
                                     .Arg<ffi::AnyBuffer>())
                       .Ret<ffi::AnyBuffer>()));

#pragma GCC visibility pop

}  // namespace tokumx

// Bytes of the scratch result; dims are B, T, S, N, K, H, D.
TOKUMX_EXPORT int64_t tokumx_attention_scratch(const int64_t* dims, int32_t backward,
                                               int64_t threads) {
  const auto d = [dims](int i) { return static_cast<size_t>(dims[i]); };
  const tokumx::AttentionShape shape{d(0), d(1), d(2), d(3), d(4), d(5),
                                     d(6), tokumx::DType::kF32};
  return static_cast<int64_t>(
      backward != 0 ? tokumx::AttentionBackwardScratch(shape, threads)
                    : tokumx::AttentionForwardScratch(shape, threads));
}
