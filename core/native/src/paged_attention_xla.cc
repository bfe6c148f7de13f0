// Paged attention as a custom call of XLA. Optional operands are empty when absent.

#include "library.h"
#include "paged_attention.h"
#include "xla_binding.h"

namespace tokumx {
namespace {

const int32_t* Ints(const ffi::AnyBuffer& x) {
  return static_cast<const int32_t*>(x.untyped_data());
}

// Of [P, slots, K, dim], or with the heads before the slots. Keys and values may
// lie side by side: `dim` is then that of both, and `offset` where these begin.
Cache CacheOf(const ffi::AnyBuffer& x, bool heads_major, size_t offset) {
  Cache cache{};
  cache.dtype = StorageOf(x.element_type()).value_or(DType::kF32);
  cache.data = static_cast<const char*>(x.untyped_data()) +
               offset * SizeOf(cache.dtype);
  const size_t inner = Dim(x, 3), outer = Dim(x, 2) * inner;
  cache.page_stride = Dim(x, 1) * outer;
  cache.slot_stride = heads_major ? inner : outer;
  cache.head_stride = heads_major ? outer : inner;
  return cache;
}

void AddScales(const ffi::AnyBuffer& head, const ffi::AnyBuffer& slot,
               bool heads_major, Cache& cache) {
  cache.head_scale = FloatsOrNull(head);
  cache.slot_scale = FloatsOrNull(slot);
  if (cache.slot_scale == nullptr) return;
  cache.scale_page_stride = Dim(slot, 1) * Dim(slot, 2);
  cache.scale_slot_stride = heads_major ? 1 : Dim(slot, 2);
  cache.scale_head_stride = heads_major ? Dim(slot, 2) : 1;
}

ffi::Error PagedCall(
    ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer key,
    ffi::AnyBuffer value, ffi::AnyBuffer first_row, ffi::AnyBuffer query_length,
    ffi::AnyBuffer kv_length, ffi::AnyBuffer position, ffi::AnyBuffer page_table,
    ffi::AnyBuffer key_scale, ffi::AnyBuffer value_scale,
    ffi::AnyBuffer key_slot_scale, ffi::AnyBuffer value_slot_scale,
    ffi::AnyBuffer sinks, ffi::Result<ffi::AnyBuffer> out,
    ffi::Result<ffi::AnyBuffer> out_wide, ffi::Result<ffi::AnyBuffer> lse,
    ffi::Result<ffi::AnyBuffer> row_max, ffi::Result<ffi::AnyBuffer> row_sum,
    ffi::Result<ffi::AnyBuffer> scratch, int64_t threads, bool heads_major,
    float scale, float unit, float soft_cap, bool is_raw, bool has_upper,
    bool has_lower, int64_t upper, int64_t lower) {
  PagedAttention call{};
  const auto dtype = FloatOf(query.element_type());
  if (!dtype.has_value() || !StorageOf(key.element_type()).has_value()) {
    return Refuse("paged attention has no kernel for these dtypes");
  }
  call.dtype = *dtype;
  call.tokens = Dim(query, 0);
  call.heads = Dim(query, 1);
  call.head_dim = Dim(query, 2);
  call.value_dim = Dim(*out, 2);
  call.pages = Dim(key, 0);
  call.page_size = Dim(key, heads_major ? 2 : 1);
  call.kv_heads = Dim(key, heads_major ? 1 : 2);
  call.sequences = Dim(page_table, 0);
  call.pages_per_sequence = Dim(page_table, 1);
  call.query = query.untyped_data();
  call.key = CacheOf(key, heads_major, 0);
  call.value = IsThere(value) ? CacheOf(value, heads_major, 0)
                              : CacheOf(key, heads_major, call.head_dim);
  AddScales(key_scale, key_slot_scale, heads_major, call.key);
  AddScales(value_scale, value_slot_scale, heads_major, call.value);
  call.first_row = Ints(first_row);
  call.query_length = Ints(query_length);
  call.kv_length = Ints(kv_length);
  call.position = Ints(position);
  call.page_table = Ints(page_table);
  call.has_upper = has_upper;
  call.has_lower = has_lower;
  call.upper = static_cast<int32_t>(upper);
  call.lower = static_cast<int32_t>(lower);
  call.scale = scale;
  call.unit = unit;
  call.soft_cap = soft_cap;
  call.is_raw = is_raw;
  call.sinks = FloatsOrNull(sinks);
  call.out = out->untyped_data();
  call.out_wide = FloatsOrNull(out_wide);
  call.lse = FloatsOrNull(lse);
  call.row_max = FloatsOrNull(row_max);
  call.row_sum = FloatsOrNull(row_sum);
  XlaWorkers workers(pool, threads);
  const size_t needed = PagedAttentionScratch(call.sequences, call.head_dim,
                                              call.value_dim, workers.Count());
  if (scratch->size_bytes() < needed) {
    return Refuse("paged attention's scratch space is too small");
  }
  RunPagedAttention(call, workers, scratch->untyped_data());
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(tokumx_paged_attention, PagedCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
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
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("heads_major")
                                  .Attr<float>("scale")
                                  .Attr<float>("unit")
                                  .Attr<float>("soft_cap")
                                  .Attr<bool>("is_raw")
                                  .Attr<bool>("has_upper")
                                  .Attr<bool>("has_lower")
                                  .Attr<int64_t>("upper")
                                  .Attr<int64_t>("lower"));

#pragma GCC visibility pop

}  // namespace tokumx

// Bytes of the scratch result.
TOKUMX_EXPORT int64_t tokumx_paged_attention_scratch(int64_t sequences,
                                                     int64_t head_dim,
                                                     int64_t value_dim,
                                                     int64_t threads) {
  return static_cast<int64_t>(
      tokumx::PagedAttentionScratch(sequences, head_dim, value_dim, threads));
}
