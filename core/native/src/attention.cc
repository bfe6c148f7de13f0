// FlashAttention-2 (Dao 2023, arXiv:2307.08691) for CPUs: tiles of 96 query rows
// by 128 keys, whose logits, keys and values lie in the L2 cache.
//
// Forward: keys are packed transposed and values in rows, once a call; then every
// block of query rows is a task that visits the key blocks it can see.
// Backward: every set of key blocks is a task that recomputes the weights from the
// row maxima and sums, and adds to query gradients of its own.

#include "attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

struct ForwardBuffers {
  float* keys;    // [B, K][S / panel][H][panel]
  float* values;  // [B, K][S][padded D]
  float* local;   // of each thread: query, out, tile, maxima, sums
  size_t local_size;

  ForwardBuffers(const AttentionShape& s, const AttentionGrid& g, size_t threads,
                 Arena& arena) {
    const size_t heads = s.batch * s.kv_heads;
    keys = arena.Floats(heads * g.padded_keys * s.head_dim);
    values = arena.Floats(heads * g.padded_keys * g.padded_value);
    const size_t rows = s.group() * g.block_q;
    local_size =
        RoundUp(rows * (s.head_dim + g.padded_value + kBlockKeys + 2), 16);
    local = arena.Floats(threads * local_size);
  }
};

template <class T>
void PackKeys(const AttentionForward& c, const AttentionGrid& g,
              const ForwardBuffers& buffers, size_t head, size_t j, float* row) {
  const AttentionShape& s = c.shape;
  const size_t b = head / s.kv_heads, k = head % s.kv_heads;
  const size_t n = g.KeysIn(s, j), first = j * kBlockKeys;
  const size_t at = (b * s.keys + first) * s.kv_heads + k;
  const T* keys = static_cast<const T*>(c.key) + at * s.head_dim;
  PackTransposed(
      n, kBlockKeys, s.head_dim,
      [&](size_t i) {
        ReadRow(keys + i * s.kv_heads * s.head_dim, s.head_dim, s.head_dim, row);
        return row;
      },
      buffers.keys + (head * g.padded_keys + first) * s.head_dim);
  const T* values = static_cast<const T*>(c.value) + at * s.value_dim;
  float* to = buffers.values + (head * g.padded_keys + first) * g.padded_value;
  for (size_t i = 0; i < n; ++i) {
    ReadRow(values + i * s.kv_heads * s.value_dim, s.value_dim, g.padded_value,
            to + i * g.padded_value);
  }
}

// The rows of one query block of one key head: all query heads of the group.
struct BlockRows {
  size_t batch, kv_head, first_head, begin, queries, count;

  BlockRows(const AttentionShape& s, const AttentionGrid& g, size_t b, size_t k,
            size_t i)
      : batch(b),
        kv_head(k),
        first_head(k * s.group()),
        begin(i * g.block_q),
        queries(g.QueriesIn(s, i)),
        count(g.RowsIn(s, i)) {}

  size_t Head(size_t row) const { return first_head + row / queries; }
  size_t Query(size_t row) const { return begin + row % queries; }
  // Index of the row in a [B, T, N] array.
  size_t Place(const AttentionShape& s, size_t row) const {
    return (batch * s.queries + Query(row)) * s.heads + Head(row);
  }
};

struct ForwardLocal {
  float *query, *out, *tile, *maximum, *sum;

  ForwardLocal(const AttentionShape& s, const AttentionGrid& g,
               const ForwardBuffers& buffers, size_t worker) {
    const size_t rows = s.group() * g.block_q;
    query = buffers.local + worker * buffers.local_size;
    out = query + rows * s.head_dim;
    tile = out + rows * g.padded_value;
    maximum = tile + rows * kBlockKeys;
    sum = maximum + rows;
  }
};

// Softmax weights of one row of a tile; rescales what the row has so far.
HWY_INLINE void UpdateRow(const AttentionForward& c, const AttentionGrid& g,
                          const BlockRows& rows, const ForwardLocal& local,
                          size_t r, size_t key, size_t nk, size_t padded,
                          bool masked, bool first) {
  float* row = local.tile + r * kBlockKeys;
  const size_t head = rows.Head(r), t = rows.Query(r);
  LogitsRow(c.logits, rows.batch, head, t, key, nk, padded, row);
  if (masked) {
    RowMask(c.mask, rows.batch, head, t, key, nk).Apply(kMinusInf, row, padded);
  } else {
    for (size_t s = nk; s < padded; ++s) row[s] = kMinusInf;
  }
  const float unit = c.logits.unit;
  const float before = local.maximum[r];
  const float now = std::max(before, MaxOfRow(row, padded));
  const float shift = FiniteOrZero(now);
  const float sum = ExpRow(shift, unit, row, padded);
  const float alpha = std::exp((before - shift) * unit);
  local.maximum[r] = now;
  local.sum[r] = local.sum[r] * alpha + sum;
  if (!first && alpha != 1.0f) {
    ScaleRow(local.out + r * g.padded_value, alpha, g.padded_value);
  }
}

HWY_INLINE void AddSink(const AttentionForward& c, const AttentionGrid& g,
                        const BlockRows& rows, const ForwardLocal& local,
                        size_t r) {
  const float unit = c.logits.unit;
  const size_t at = rows.batch * c.logits.sinks_stride + rows.Head(r);
  const float sink = c.logits.sinks[at] / unit;
  const float now = std::max(local.maximum[r], sink);
  const float shift = FiniteOrZero(now);
  const float alpha = std::exp((local.maximum[r] - shift) * unit);
  local.sum[r] = local.sum[r] * alpha + std::exp((sink - shift) * unit);
  local.maximum[r] = now;
  ScaleRow(local.out + r * g.padded_value, alpha, g.padded_value);
}

template <class T>
HWY_INLINE void WriteOut(const AttentionForward& c, const AttentionGrid& g,
                         const BlockRows& rows, const ForwardLocal& local,
                         size_t r) {
  const AttentionShape& s = c.shape;
  const size_t place = rows.Place(s, r);
  const float sum = local.sum[r];
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const float* out = local.out + r * g.padded_value;
  T* to = static_cast<T*>(c.out) + place * s.value_dim;
  WriteRow(out, inverse, s.value_dim, to);
  if (c.out_wide != nullptr) {
    WriteRow(out, inverse, s.value_dim, c.out_wide + place * s.value_dim);
  }
  const float m = FiniteOrZero(local.maximum[r]);
  if (c.lse != nullptr) c.lse[place] = std::log(sum) + m * c.logits.unit;
  if (c.row_max != nullptr) c.row_max[place] = m;
  if (c.row_sum != nullptr) c.row_sum[place] = sum;
}

template <class T>
void ForwardBlock(const AttentionForward& c, const AttentionGrid& g,
                  const ForwardBuffers& buffers, const BlockRows& rows, size_t i,
                  size_t worker) {
  const AttentionShape& s = c.shape;
  const ForwardLocal local(s, g, buffers, worker);
  const T* query = static_cast<const T*>(c.query);
  for (size_t r = 0; r < rows.count; ++r) {
    ReadRow(query + rows.Place(s, r) * s.head_dim, s.head_dim, s.head_dim,
            local.query + r * s.head_dim);
    local.maximum[r] = kMinusInf;
    local.sum[r] = 0.0f;
  }
  const BlockMask blocks(s, c.mask, g, rows.batch);
  const size_t head = rows.batch * s.kv_heads + rows.kv_head;
  const size_t width = PanelWidth();
  bool first = true;
  for (size_t j = 0; j < g.num_kv; ++j) {
    const Visibility seen = blocks.Of(i, j, rows.batch, rows.first_head);
    if (seen == Visibility::kNone) continue;
    const size_t nk = g.KeysIn(s, j), padded = RoundUp(nk, width);
    const size_t key = j * kBlockKeys;
    const float* keys = buffers.keys + (head * g.padded_keys + key) * s.head_dim;
    const float* values =
        buffers.values + (head * g.padded_keys + key) * g.padded_value;
    Gemm(rows.count, padded, s.head_dim, {local.query, s.head_dim, 1},
         {keys, width, s.head_dim * width}, local.tile, kBlockKeys, false);
    for (size_t r = 0; r < rows.count; ++r) {
      UpdateRow(c, g, rows, local, r, key, nk, padded, seen == Visibility::kSome,
                first);
    }
    Gemm(rows.count, g.padded_value, nk, {local.tile, kBlockKeys, 1},
         {values, g.padded_value, width}, local.out, g.padded_value, !first);
    first = false;
  }
  if (first) std::memset(local.out, 0, rows.count * g.padded_value * 4);
  for (size_t r = 0; r < rows.count; ++r) {
    if (c.logits.sinks != nullptr) AddSink(c, g, rows, local, r);
    WriteOut<T>(c, g, rows, local, r);
  }
}

template <class T>
void ForwardOf(const AttentionForward& c, Workers& workers, void* scratch) {
  const AttentionShape& s = c.shape;
  const AttentionGrid g(s);
  Arena arena(scratch);
  const ForwardBuffers buffers(s, g, workers.Count(), arena);
  const size_t heads = s.batch * s.kv_heads;
  ParallelFor(workers, heads * g.num_kv, [&](size_t task, size_t worker) {
    float* row = buffers.local + worker * buffers.local_size;
    PackKeys<T>(c, g, buffers, task / g.num_kv, task % g.num_kv, row);
  });
  // Late blocks first: under a causal mask they are the long ones.
  ParallelFor(workers, heads * g.num_q, [&](size_t task, size_t worker) {
    const size_t i = g.num_q - 1 - task / heads, head = task % heads;
    const BlockRows rows(s, g, head / s.kv_heads, head % s.kv_heads, i);
    ForwardBlock<T>(c, g, buffers, rows, i, worker);
  });
}

void Forward(const AttentionForward& c, Workers& workers, void* scratch) {
  switch (c.shape.dtype) {
    case DType::kF32:
      return ForwardOf<float>(c, workers, scratch);
    case DType::kBF16:
      return ForwardOf<hwy::bfloat16_t>(c, workers, scratch);
    default:
      return ForwardOf<hwy::float16_t>(c, workers, scratch);
  }
}

// Key blocks are dealt out to so many tasks a head, each with its own sum of
// query gradients.
inline size_t SharesOf(const AttentionShape& s, const AttentionGrid& g,
                       size_t threads) {
  const size_t heads = s.batch * s.kv_heads;
  const size_t wanted = heads % threads == 0 ? 1 : CeilDiv(2 * threads, heads);
  return std::min<size_t>(g.num_kv, std::max<size_t>(wanted, 1));
}

struct BackwardBuffers {
  size_t shares, rows;        // G * T rows a head
  float *query, *d_out;       // [B, K][rows][padded H or D]
  float *maximum, *delta;     // [B, K][rows]
  float* d_query;             // [shares][B, K][rows][padded H]
  float* local;
  size_t local_size;

  BackwardBuffers(const AttentionShape& s, const AttentionGrid& g, size_t threads,
                  Arena& arena) {
    const size_t heads = s.batch * s.kv_heads;
    shares = SharesOf(s, g, threads);
    rows = s.group() * s.queries;
    query = arena.Floats(heads * rows * g.padded_head);
    d_out = arena.Floats(heads * rows * g.padded_value);
    maximum = arena.Floats(heads * rows);
    delta = arena.Floats(heads * rows);
    d_query = arena.Floats(shares * heads * rows * g.padded_head);
    const size_t tile_rows = s.group() * g.block_q;
    local_size = RoundUp(2 * tile_rows * kBlockKeys +
                             3 * kBlockKeys * g.padded_head +
                             3 * kBlockKeys * g.padded_value,
                         16);
    local = arena.Floats(threads * local_size);
  }
};

struct BackwardLocal {
  float *weights, *slopes;       // [rows][keys]
  float *keys, *keys_t, *d_keys;  // [keys][padded H], panels, [keys][padded H]
  float *values, *values_t, *d_values;

  BackwardLocal(const AttentionShape& s, const AttentionGrid& g,
                const BackwardBuffers& buffers, size_t worker) {
    const size_t tile = s.group() * g.block_q * kBlockKeys;
    weights = buffers.local + worker * buffers.local_size;
    slopes = weights + tile;
    keys = slopes + tile;
    keys_t = keys + kBlockKeys * g.padded_head;
    d_keys = keys_t + kBlockKeys * g.padded_head;
    values = d_keys + kBlockKeys * g.padded_head;
    values_t = values + kBlockKeys * g.padded_value;
    d_values = values_t + kBlockKeys * g.padded_value;
  }
};

// Query rows and cotangents in float, block by block; both of the latter and
// delta = sum(p * dp) divided by the row's sum. A row that saw nothing has none.
template <class T>
void ReadRows(const AttentionBackward& c, const AttentionGrid& g,
              const BackwardBuffers& buffers, const BlockRows& rows, float* wide) {
  const AttentionShape& s = c.shape;
  const size_t head = rows.batch * s.kv_heads + rows.kv_head;
  const size_t base = head * buffers.rows + rows.begin * s.group();
  for (size_t r = 0; r < rows.count; ++r) {
    const size_t place = rows.Place(s, r), at = base + r;
    ReadRow(static_cast<const T*>(c.query) + place * s.head_dim, s.head_dim,
            g.padded_head, buffers.query + at * g.padded_head);
    float* d_out = buffers.d_out + at * g.padded_value;
    ReadRow(static_cast<const T*>(c.d_out) + place * s.value_dim, s.value_dim,
            g.padded_value, d_out);
    ReadRow(c.out_wide + place * s.value_dim, s.value_dim, g.padded_value, wide);
    const float sum = c.row_sum[place];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float d_lse = c.d_lse == nullptr ? 0.0f : c.d_lse[place];
    // In dp's order, so that the two round alike: a row with one key gets exactly 0.
    ScaleRow(d_out, inverse, g.padded_value);
    const float dot = DotInOrder(d_out, wide, s.value_dim);
    buffers.delta[at] = dot - d_lse * inverse;
    buffers.maximum[at] = c.row_max[place];
  }
}

template <class T>
void ReadKeys(const AttentionBackward& c, const AttentionGrid& g,
              const BackwardLocal& local, size_t b, size_t k, size_t j) {
  const AttentionShape& s = c.shape;
  const size_t n = g.KeysIn(s, j);
  const size_t at = (b * s.keys + j * kBlockKeys) * s.kv_heads + k;
  const T* keys = static_cast<const T*>(c.key) + at * s.head_dim;
  const T* values = static_cast<const T*>(c.value) + at * s.value_dim;
  for (size_t i = 0; i < n; ++i) {
    ReadRow(keys + i * s.kv_heads * s.head_dim, s.head_dim, g.padded_head,
            local.keys + i * g.padded_head);
    ReadRow(values + i * s.kv_heads * s.value_dim, s.value_dim, g.padded_value,
            local.values + i * g.padded_value);
  }
  PackTransposed(
      n, kBlockKeys, s.head_dim,
      [&](size_t i) { return local.keys + i * g.padded_head; }, local.keys_t);
  PackTransposed(
      n, kBlockKeys, s.value_dim,
      [&](size_t i) { return local.values + i * g.padded_value; },
      local.values_t);
  std::memset(local.d_keys, 0, n * g.padded_head * sizeof(float));
  std::memset(local.d_values, 0, n * g.padded_value * sizeof(float));
}

// weights = exp(logit - m), slopes = weights * (dp - delta), both of one row.
HWY_INLINE void SlopesRow(const AttentionBackward& c, const BlockRows& rows,
                          float* weights, float* slopes, float m, float delta,
                          size_t r, size_t key, size_t nk, size_t padded,
                          bool masked) {
  const F32 d;
  const size_t head = rows.Head(r), t = rows.Query(r);
  LogitsRow(c.logits, rows.batch, head, t, key, nk, padded, weights);
  if (masked) {
    RowMask(c.mask, rows.batch, head, t, key, nk)
        .Apply(kMinusInf, weights, padded);
  } else {
    for (size_t s = nk; s < padded; ++s) weights[s] = kMinusInf;
  }
  const VF shift = hn::Set(d, m), unit = hn::Set(d, c.logits.unit);
  const VF mean = hn::Set(d, delta), one = hn::Set(d, 1.0f);
  const bool capped = c.logits.soft_cap > 0;
  const VF inverse = hn::Set(d, capped ? 1.0f / c.logits.soft_cap : 0.0f);
  for (size_t s = 0; s < padded; s += hn::Lanes(d)) {
    const VF logit = hn::LoadU(d, weights + s);
    const VF p = ExpF(hn::Mul(hn::Sub(logit, shift), unit));
    VF ds = hn::Mul(p, hn::Sub(hn::LoadU(d, slopes + s), mean));
    if (capped) {
      // A masked logit is infinite, and its weight is 0.
      const VF y = hn::Mul(hn::Max(logit, hn::Set(d, -c.logits.soft_cap)), inverse);
      ds = hn::Mul(ds, hn::NegMulAdd(y, y, one));
    }
    hn::StoreU(p, d, weights + s);
    hn::StoreU(ds, d, slopes + s);
  }
}

void BackwardTile(const AttentionBackward& c, const AttentionGrid& g,
                  const BackwardBuffers& buffers, const BackwardLocal& local,
                  const BlockRows& rows, size_t j, bool masked, float* d_query) {
  const AttentionShape& s = c.shape;
  const size_t width = PanelWidth(), h = g.padded_head, v = g.padded_value;
  const size_t nk = g.KeysIn(s, j), padded = RoundUp(nk, width);
  const size_t head = rows.batch * s.kv_heads + rows.kv_head;
  const size_t base = head * buffers.rows + rows.begin * s.group();
  const float* query = buffers.query + base * h;
  const float* d_out = buffers.d_out + base * v;
  Gemm(rows.count, padded, s.head_dim, {query, h, 1},
       {local.keys_t, width, s.head_dim * width}, local.weights, kBlockKeys, false);
  Gemm(rows.count, padded, s.value_dim, {d_out, v, 1},
       {local.values_t, width, s.value_dim * width}, local.slopes, kBlockKeys,
       false);
  for (size_t r = 0; r < rows.count; ++r) {
    SlopesRow(c, rows, local.weights + r * kBlockKeys,
              local.slopes + r * kBlockKeys, buffers.maximum[base + r],
              buffers.delta[base + r], r, j * kBlockKeys, nk, padded, masked);
  }
  Gemm(nk, v, rows.count, {local.weights, 1, kBlockKeys}, {d_out, v, width},
       local.d_values, v, true);
  Gemm(nk, h, rows.count, {local.slopes, 1, kBlockKeys}, {query, h, width},
       local.d_keys, h, true);
  Gemm(rows.count, h, nk, {local.slopes, kBlockKeys, 1}, {local.keys, h, width},
       d_query + base * h, h, true);
}

template <class T>
void BackwardKeys(const AttentionBackward& c, const AttentionGrid& g,
                  const BackwardBuffers& buffers, size_t head, size_t share,
                  size_t worker) {
  const AttentionShape& s = c.shape;
  const size_t b = head / s.kv_heads, k = head % s.kv_heads;
  const BackwardLocal local(s, g, buffers, worker);
  const BlockMask blocks(s, c.mask, g, b);
  const size_t all_rows = s.batch * s.kv_heads * buffers.rows;
  float* d_query = buffers.d_query + share * all_rows * g.padded_head;
  std::memset(d_query + head * buffers.rows * g.padded_head, 0,
              buffers.rows * g.padded_head * sizeof(float));
  for (size_t j = share; j < g.num_kv; j += buffers.shares) {
    ReadKeys<T>(c, g, local, b, k, j);
    for (size_t i = 0; i < g.num_q; ++i) {
      const BlockRows rows(s, g, b, k, i);
      const Visibility seen = blocks.Of(i, j, b, rows.first_head);
      if (seen == Visibility::kNone) continue;
      BackwardTile(c, g, buffers, local, rows, j, seen == Visibility::kSome,
                   d_query);
    }
    for (size_t n = 0; n < g.KeysIn(s, j); ++n) {
      const size_t at = (b * s.keys + j * kBlockKeys + n) * s.kv_heads + k;
      WriteRow(local.d_keys + n * g.padded_head, c.logits.scale, s.head_dim,
               static_cast<T*>(c.d_key) + at * s.head_dim);
      WriteRow(local.d_values + n * g.padded_value, 1.0f, s.value_dim,
               static_cast<T*>(c.d_value) + at * s.value_dim);
    }
  }
}

// Sums the shares of the query gradients of one block of rows.
template <class T>
void WriteQueryGradients(const AttentionBackward& c, const AttentionGrid& g,
                         const BackwardBuffers& buffers, const BlockRows& rows) {
  const F32 d;
  const AttentionShape& s = c.shape;
  const size_t head = rows.batch * s.kv_heads + rows.kv_head;
  const size_t base = head * buffers.rows + rows.begin * s.group();
  const size_t share = s.batch * s.kv_heads * buffers.rows * g.padded_head;
  for (size_t r = 0; r < rows.count; ++r) {
    float* sum = buffers.d_query + (base + r) * g.padded_head;
    for (size_t n = 1; n < buffers.shares; ++n) {
      for (size_t i = 0; i < g.padded_head; i += hn::Lanes(d)) {
        const VF more = hn::LoadU(d, sum + n * share + i);
        hn::StoreU(hn::Add(hn::LoadU(d, sum + i), more), d, sum + i);
      }
    }
    WriteRow(sum, c.logits.scale, s.head_dim,
             static_cast<T*>(c.d_query) + rows.Place(s, r) * s.head_dim);
  }
}

template <class T>
void BackwardOf(const AttentionBackward& c, Workers& workers, void* scratch) {
  const AttentionShape& s = c.shape;
  const AttentionGrid g(s);
  Arena arena(scratch);
  const BackwardBuffers buffers(s, g, workers.Count(), arena);
  const size_t heads = s.batch * s.kv_heads;
  const auto rows_of = [&](size_t task) {
    const size_t head = task / g.num_q;
    return BlockRows(s, g, head / s.kv_heads, head % s.kv_heads, task % g.num_q);
  };
  ParallelFor(workers, heads * g.num_q, [&](size_t task, size_t worker) {
    float* wide = buffers.local + worker * buffers.local_size;
    ReadRows<T>(c, g, buffers, rows_of(task), wide);
  });
  ParallelFor(workers, heads * buffers.shares, [&](size_t task, size_t worker) {
    BackwardKeys<T>(c, g, buffers, task / buffers.shares, task % buffers.shares,
                    worker);
  });
  ParallelFor(workers, heads * g.num_q, [&](size_t task, size_t) {
    WriteQueryGradients<T>(c, g, buffers, rows_of(task));
  });
}

void Backward(const AttentionBackward& c, Workers& workers, void* scratch) {
  switch (c.shape.dtype) {
    case DType::kF32:
      return BackwardOf<float>(c, workers, scratch);
    case DType::kBF16:
      return BackwardOf<hwy::bfloat16_t>(c, workers, scratch);
    default:
      return BackwardOf<hwy::float16_t>(c, workers, scratch);
  }
}

size_t ForwardBytes(const AttentionShape& s, size_t threads) {
  const AttentionGrid g(s);
  Arena arena(nullptr);
  ForwardBuffers(s, g, threads, arena);
  return arena.used();
}

size_t BackwardBytes(const AttentionShape& s, size_t threads) {
  const AttentionGrid g(s);
  Arena arena(nullptr);
  BackwardBuffers(s, g, threads, arena);
  return arena.used();
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokumx {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);
HWY_EXPORT(ForwardBytes);
HWY_EXPORT(BackwardBytes);

size_t AttentionForwardScratch(const AttentionShape& shape, size_t threads) {
  return HWY_DYNAMIC_DISPATCH(ForwardBytes)(shape, threads);
}

size_t AttentionBackwardScratch(const AttentionShape& shape, size_t threads) {
  return HWY_DYNAMIC_DISPATCH(BackwardBytes)(shape, threads);
}

void RunAttentionForward(const AttentionForward& call, Workers& workers,
                         void* scratch) {
  HWY_DYNAMIC_DISPATCH(Forward)(call, workers, scratch);
}

void RunAttentionBackward(const AttentionBackward& call, Workers& workers,
                          void* scratch) {
  HWY_DYNAMIC_DISPATCH(Backward)(call, workers, scratch);
}

}  // namespace tokumx
#endif  // HWY_ONCE
