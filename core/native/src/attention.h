// Softmax attention over operands in memory; see ops/attention/README.md.
//
// B batch, T queries, S keys, N query heads, K key heads, G = N / K, H head dim,
// D value dim. All arrays are contiguous, in the layouts of the public function.

#ifndef TOKUMX_NATIVE_ATTENTION_H_
#define TOKUMX_NATIVE_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "workers.h"

namespace tokumx {

// A [B or 1, X] array; stride 0 where the batch shares one row. Null if absent.
struct Rows {
  const int32_t* data = nullptr;
  size_t stride = 0;

  const int32_t* Of(size_t batch) const {
    return data == nullptr ? nullptr : data + batch * stride;
  }
};

// A [B or 1, N or 1, T or 1, S or 1] array; stride 0 along broadcast axes.
struct LogitsLike {
  const void* data = nullptr;
  size_t batch = 0, head = 0, query = 0, key = 0;  // strides, in elements
};

struct AttentionShape {
  size_t batch, queries, keys, heads, kv_heads, head_dim, value_dim;
  DType dtype;

  size_t group() const { return heads / kv_heads; }
};

struct AttentionMask {
  bool has_upper = false;  // key position <= query position + upper
  bool has_lower = false;  // key position >= query position - lower
  int32_t upper = 0, lower = 0;
  Rows query_position, key_position;  // both there if a bound is
  Rows query_segment, key_segment;    // both or none
  Rows query_length, key_length;      // [B or 1, 1] each
  LogitsLike visible;                 // uint8, nonzero: the query sees the key
};

struct AttentionLogits {
  float scale = 1.0f;
  float soft_cap = 0.0f;  // 0: none
  // Logits and row maxima are kept in units of 1 / unit: the scale, where nothing
  // is added to the product, else 1.
  float unit = 1.0f;
  bool is_raw = true;  // the logits are the product in units of 1 / unit
  LogitsLike bias;
  DType bias_dtype = DType::kF32;
  const float* sinks = nullptr;  // [B or 1, N]
  size_t sinks_stride = 0;
};

struct AttentionForward {
  AttentionShape shape;
  AttentionMask mask;
  AttentionLogits logits;
  const void *query, *key, *value;
  void* out;                               // [B, T, N, D]
  float *out_wide, *lse, *row_max, *row_sum;  // any may be null
};

struct AttentionBackward {
  AttentionShape shape;
  AttentionMask mask;
  AttentionLogits logits;  // bias must be absent
  const void *query, *key, *value;
  const float *out_wide, *row_max, *row_sum;  // of the forward
  const void* d_out;
  const float* d_lse;  // null: zero
  void *d_query, *d_key, *d_value;
};

// Bytes of scratch memory that a call needs with so many threads.
size_t AttentionForwardScratch(const AttentionShape& shape, size_t threads);
size_t AttentionBackwardScratch(const AttentionShape& shape, size_t threads);

// `scratch` is aligned to 64 bytes.
void RunAttentionForward(const AttentionForward& call, Workers& workers,
                         void* scratch);
void RunAttentionBackward(const AttentionBackward& call, Workers& workers,
                          void* scratch);

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_ATTENTION_H_
