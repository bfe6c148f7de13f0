// Sizes of attention's blocks, and which of them to visit. Nothing here depends on
// the instruction set.

#ifndef TOKUMX_NATIVE_ATTENTION_TILES_H_
#define TOKUMX_NATIVE_ATTENTION_TILES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "attention.h"

namespace tokumx {

// Widest panel of any instruction set: two vectors of 16 floats. Buffers are
// padded to it whatever runs.
constexpr size_t kMaxPanel = 32;

constexpr size_t kBlockKeys = 128;
constexpr size_t kRowsPerBlock = 96;

struct AttentionGrid {
  size_t block_q, num_q;  // queries of one head in a block
  size_t num_kv;
  size_t padded_keys, padded_head, padded_value;

  explicit AttentionGrid(const AttentionShape& s) {
    block_q = std::min(s.queries, std::max<size_t>(kRowsPerBlock / s.group(), 4));
    num_q = CeilDiv(s.queries, block_q);
    num_kv = CeilDiv(s.keys, kBlockKeys);
    padded_keys = num_kv * kBlockKeys;
    padded_head = RoundUp(s.head_dim, kMaxPanel);
    padded_value = RoundUp(s.value_dim, kMaxPanel);
  }

  size_t RowsIn(const AttentionShape& s, size_t i) const {
    return s.group() * QueriesIn(s, i);
  }
  size_t QueriesIn(const AttentionShape& s, size_t i) const {
    return std::min(block_q, s.queries - i * block_q);
  }
  size_t KeysIn(const AttentionShape& s, size_t j) const {
    return std::min(kBlockKeys, s.keys - j * kBlockKeys);
  }
};

enum class Visibility : uint8_t { kNone, kSome, kAll };

// What a block's rows know about themselves, at its extremes.
struct Extremes {
  int32_t low, high;
};

inline Extremes ExtremesOf(const int32_t* x, size_t begin, size_t size) {
  Extremes e{x[begin], x[begin]};
  for (size_t i = begin + 1; i < begin + size; ++i) {
    e.low = std::min(e.low, x[i]);
    e.high = std::max(e.high, x[i]);
  }
  return e;
}

// The bound is exact in 64 bits: positions may be near the ends of int32.
inline int64_t Upper(const AttentionMask& mask, int32_t query_position) {
  return mask.has_upper ? int64_t{query_position} + mask.upper : INT64_MAX;
}
inline int64_t Lower(const AttentionMask& mask, int32_t query_position) {
  return mask.has_lower ? int64_t{query_position} - mask.lower : INT64_MIN;
}

// May say kSome where a closer look would say kNone or kAll.
class BlockMask {
 public:
  BlockMask(const AttentionShape& shape, const AttentionMask& mask,
            const AttentionGrid& grid, size_t batch)
      : shape_(shape),
        mask_(mask),
        grid_(grid),
        query_position_(mask.query_position.Of(batch)),
        key_position_(mask.key_position.Of(batch)),
        query_segment_(mask.query_segment.Of(batch)),
        key_segment_(mask.key_segment.Of(batch)),
        query_length_(mask.query_length.Of(batch)),
        key_length_(mask.key_length.Of(batch)) {}

  Visibility Of(size_t i, size_t j) const {
    bool some = true, all = true;
    const size_t q = i * grid_.block_q, nq = grid_.QueriesIn(shape_, i);
    const size_t k = j * kBlockKeys, nk = grid_.KeysIn(shape_, j);
    if (mask_.has_upper || mask_.has_lower) {
      const Extremes a = ExtremesOf(query_position_, q, nq);
      const Extremes b = ExtremesOf(key_position_, k, nk);
      some &= b.low <= Upper(mask_, a.high) && b.high >= Lower(mask_, a.low);
      all &= b.high <= Upper(mask_, a.low) && b.low >= Lower(mask_, a.high);
    }
    if (query_segment_ != nullptr) {
      const Extremes a = ExtremesOf(query_segment_, q, nq);
      const Extremes b = ExtremesOf(key_segment_, k, nk);
      some &= a.low <= b.high && b.low <= a.high;
      all &= a.low == a.high && b.low == b.high && a.low == b.low;
    }
    if (query_length_ != nullptr) {
      const int64_t length = *query_length_;
      some &= static_cast<int64_t>(q) < length;
      all &= static_cast<int64_t>(q + nq) <= length;
    }
    if (key_length_ != nullptr) {
      const int64_t length = *key_length_;
      some &= static_cast<int64_t>(k) < length;
      all &= static_cast<int64_t>(k + nk) <= length;
    }
    if (!some) return Visibility::kNone;
    return all && mask_.visible.data == nullptr ? Visibility::kAll
                                                : Visibility::kSome;
  }

  // Also looks at the caller's own mask, of the query heads [head, head + G).
  Visibility Of(size_t i, size_t j, size_t batch, size_t head) const {
    const Visibility rules = Of(i, j);
    if (rules == Visibility::kNone || mask_.visible.data == nullptr) return rules;
    bool any = false, all = true;
    const LogitsLike& v = mask_.visible;
    const size_t heads = v.head == 0 ? 1 : shape_.group();
    const size_t queries = v.query == 0 ? 1 : grid_.QueriesIn(shape_, i);
    const size_t keys = v.key == 0 ? 1 : grid_.KeysIn(shape_, j);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < queries; ++t) {
        const uint8_t* row = static_cast<const uint8_t*>(v.data) +
                             batch * v.batch + (head + h) * v.head +
                             (i * grid_.block_q + t) * v.query +
                             j * kBlockKeys * v.key;
        uint8_t some = 0, every = 1;
        for (size_t s = 0; s < keys; ++s) {
          some |= row[s];
          every &= row[s];
        }
        any |= some != 0;
        all &= every != 0;
      }
    }
    if (!any) return Visibility::kNone;
    if (!all) return Visibility::kSome;
    AttentionMask rest = mask_;
    rest.visible = LogitsLike{};
    return BlockMask(shape_, rest, grid_, batch).Of(i, j);
  }

 private:
  const AttentionShape& shape_;
  const AttentionMask& mask_;
  const AttentionGrid& grid_;
  const int32_t *query_position_, *key_position_;
  const int32_t *query_segment_, *key_segment_;
  const int32_t *query_length_, *key_length_;
};

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_ATTENTION_TILES_H_
