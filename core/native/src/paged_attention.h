// Attention of new tokens over a paged cache, forward only; see
// ops/ragged_paged_attention/README.md. A contiguous cache is one with a page for
// each sequence.
//
// R sequences, N query heads, K key heads, G = N / K, H head dim, D value dim.

#ifndef TOKUMX_NATIVE_PAGED_ATTENTION_H_
#define TOKUMX_NATIVE_PAGED_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "workers.h"

namespace tokumx {

// Keys or values: element e of a slot lies at
// page * page_stride + slot * slot_stride + head * head_stride + e.
struct Cache {
  const void* data;
  DType dtype;
  size_t page_stride, slot_stride, head_stride;
  // What stored numbers are multiplied with; null for 1. By slot: strides are
  // those of the cache over its last axis, `dim`.
  const float* head_scale;  // [K]
  const float* slot_scale;
  size_t scale_page_stride, scale_slot_stride, scale_head_stride;
};

struct PagedAttention {
  size_t sequences, tokens, heads, kv_heads, head_dim, value_dim;
  size_t pages, page_size, pages_per_sequence;
  DType dtype;
  const void* query;  // [tokens, N, H]
  Cache key, value;
  // [R] each: first row of query, new tokens, keys, position of the first token.
  const int32_t *first_row, *query_length, *kv_length, *position;
  const int32_t* page_table;  // [R, pages_per_sequence], clamped when read
  bool has_upper, has_lower;
  int32_t upper, lower;  // position - lower <= key position <= position + upper
  float scale, soft_cap, unit;  // see AttentionLogits
  bool is_raw;
  const float* sinks;  // [N] or null
  void* out;           // [tokens, N, D]; rows of no sequence become zeros
  float *out_wide, *lse, *row_max, *row_sum;  // any may be null

  size_t group() const { return heads / kv_heads; }
};

size_t PagedAttentionScratch(size_t sequences, size_t head_dim, size_t value_dim,
                             size_t threads);

// `scratch` is aligned to 64 bytes.
void RunPagedAttention(const PagedAttention& call, Workers& workers, void* scratch);

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_PAGED_ATTENTION_H_
