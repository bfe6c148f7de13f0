// The rows of a sequence (G heads of each new token) meet its keys in tiles of 128.
// A tile's logits lie transposed, [keys][rows]: keys are multiplied as they lie in
// the cache, with the packed rows, and softmax works on vectors of rows. So one
// kernel serves a decode step of 1 row and a prefill of 96.
//
// Decoding is bound by memory. A task then takes as many key heads as fit, since
// these lie side by side in the cache, and prefetches its next tile while it works
// on this one. A sequence with few rows is split by keys, so that every thread has
// work; the parts are then combined.

#include "paged_attention.h"

#include "arena.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "paged_attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tokumx {
namespace HWY_NAMESPACE {

constexpr size_t kTileKeys = 128;
constexpr size_t kTileRows = 96;
// With several key heads a task: keys in a tile, so that it and the next stay in
// the L2 cache, and the rows of all heads.
constexpr size_t kSharedTileKeys = 32;
constexpr size_t kSharedRows = 256;
constexpr size_t kCacheLine = 64;
// So few rows are multiplied key by key, as dot products; not for a backward, which
// sums a logit's terms in another order.
constexpr size_t kDotRows = 2;

struct PagedBuffers {
  size_t padded_head, padded_value, local_size, part_size;
  int32_t* first_block;  // [R + 1] blocks of rows of the sequences before
  float* parts;          // of split blocks: out, maxima, sums
  float* local;

  PagedBuffers(size_t sequences, size_t head_dim, size_t value_dim, size_t threads,
               Arena& arena)
      : padded_head(RoundUp(head_dim, kMaxPanel)),
        padded_value(RoundUp(value_dim, kMaxPanel)) {
    first_block = arena.Array<int32_t>(sequences + 1);
    part_size = kSharedRows * (padded_value + 2);
    parts = arena.Floats(4 * threads * part_size);
    local_size = kSharedRows * (2 * padded_head + padded_value + 3) +
                 kTileRows * (kTileKeys + 2) +
                 kTileKeys * (padded_head + padded_value);
    local = arena.Floats(threads * RoundUp(local_size, 16));
  }
};

// A thread's memory. What belongs to one key head begins at its first row.
struct PagedLocal {
  float *query, *query_t;         // [rows][padded H], [H][row lanes]
  float *out, *maximum, *sum;     // [rows][padded D], [row lanes] each
  float *tile, *alpha;            // [keys][row lanes], [row lanes]
  float *keys, *values;           // [keys][padded H], [keys][padded D]
  int32_t *upper, *lower;         // [row lanes]

  PagedLocal(const PagedBuffers& b, size_t worker) {
    float* at = b.local + worker * RoundUp(b.local_size, 16);
    const auto take = [&at](size_t n) {
      float* piece = at;
      at += n;
      return piece;
    };
    query = take(kSharedRows * b.padded_head);
    query_t = take(kSharedRows * b.padded_head);
    out = take(kSharedRows * b.padded_value);
    maximum = take(kSharedRows);
    sum = take(kSharedRows);
    alpha = take(kSharedRows);
    tile = take(kTileKeys * kTileRows);
    keys = take(kTileKeys * b.padded_head);
    values = take(kTileKeys * b.padded_value);
    upper = reinterpret_cast<int32_t*>(take(kTileRows));
    lower = reinterpret_cast<int32_t*>(take(kTileRows));
  }

  // As seen by a head whose rows begin at `row`.
  PagedLocal From(const PagedBuffers& b, size_t row) const {
    PagedLocal head = *this;
    head.query += row * b.padded_head;
    head.query_t += row * b.padded_head;
    head.out += row * b.padded_value;
    head.maximum += row;
    head.sum += row;
    return head;
  }
};

// Up to kTileRows rows of one sequence and key head. Row r of the sequence is
// token r / G, head r % G of the group.
struct RowBlock {
  size_t sequence, kv_head, first, count, lanes;

  RowBlock(const PagedAttention& c, size_t s, size_t k, size_t block)
      : sequence(s), kv_head(k), first(block * kTileRows) {
    const size_t rows = c.group() * static_cast<size_t>(c.query_length[s]);
    count = std::min(kTileRows, rows - first);
    const size_t vector = hn::Lanes(F32());
    lanes = count <= vector ? vector : RoundUp(count, 2 * vector);
  }

  size_t Token(const PagedAttention& c, size_t r) const {
    return (first + r) / c.group();
  }
  size_t Head(const PagedAttention& c, size_t r) const {
    return kv_head * c.group() + (first + r) % c.group();
  }
  // Index of the row in a [tokens, N] array.
  size_t Place(const PagedAttention& c, size_t r) const {
    const size_t token = c.first_row[sequence] + Token(c, r);
    return token * c.heads + Head(c, r);
  }
};

// The keys [begin, end) that some row sees. Each of them is seen by one: the rows'
// windows overlap, so no slot is read that was never written.
struct KeyRange {
  int64_t begin, end;

  KeyRange(const PagedAttention& c, const RowBlock& rows) {
    const int64_t base = c.position[rows.sequence];
    const int64_t low = base + static_cast<int64_t>(rows.Token(c, 0));
    const int64_t high = base + static_cast<int64_t>(rows.Token(c, rows.count - 1));
    const int64_t length = c.kv_length[rows.sequence];
    end = c.has_upper ? std::min(length, high + c.upper + 1) : length;
    begin = c.has_lower ? std::max<int64_t>(low - c.lower, 0) : 0;
    end = std::max<int64_t>(end, 0);
    begin = std::min(begin, end);
  }
};

HWY_INLINE float ScaleOf(const Cache& cache, size_t page, size_t slot, size_t head) {
  float scale = cache.head_scale == nullptr ? 1.0f : cache.head_scale[head];
  if (cache.slot_scale != nullptr) {
    scale *= cache.slot_scale[page * cache.scale_page_stride +
                              slot * cache.scale_slot_stride +
                              head * cache.scale_head_stride];
  }
  return scale;
}

HWY_INLINE const char* SlotOf(const Cache& cache, size_t page, size_t slot,
                              size_t head) {
  const size_t at = page * cache.page_stride + slot * cache.slot_stride +
                    head * cache.head_stride;
  return static_cast<const char*>(cache.data) + at * SizeOf(cache.dtype);
}

HWY_INLINE void ReadSlot(const Cache& cache, size_t page, size_t slot, size_t head,
                         size_t dim, size_t padded, float* to) {
  ReadAny(cache.dtype, SlotOf(cache, page, slot, head), dim, padded,
          ScaleOf(cache, page, slot, head), to);
}

// Whatever the table holds, the page exists.
HWY_INLINE size_t PageOf(const PagedAttention& c, size_t sequence, size_t key) {
  const int32_t* table = c.page_table + sequence * c.pages_per_sequence;
  const int64_t id = table[key / c.page_size];
  return std::clamp<int64_t>(id, 0, static_cast<int64_t>(c.pages) - 1);
}

HWY_INLINE void PrefetchSlot(const Cache& cache, size_t page, size_t slot,
                             size_t head, size_t dim) {
  const char* from = SlotOf(cache, page, slot, head);
  for (size_t at = 0; at < dim * SizeOf(cache.dtype); at += kCacheLine) {
    hwy::Prefetch(from + at);
  }
}

// Fetches the keys [begin, end) of `heads` key heads from `head` on.
HWY_INLINE void PrefetchKeys(const PagedAttention& c, size_t sequence, size_t head,
                             size_t heads, size_t begin, size_t end) {
  for (size_t key = begin; key < end; ++key) {
    const size_t page = PageOf(c, sequence, key), slot = key % c.page_size;
    for (size_t h = head; h < head + heads; ++h) {
      PrefetchSlot(c.key, page, slot, h, c.head_dim);
    }
    for (size_t h = head; h < head + heads; ++h) {
      PrefetchSlot(c.value, page, slot, h, c.value_dim);
    }
  }
}

HWY_INLINE void ReadTile(const PagedAttention& c, const PagedBuffers& b,
                         const RowBlock& rows, const PagedLocal& local,
                         size_t begin, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const size_t key = begin + i;
    const size_t page = PageOf(c, rows.sequence, key), slot = key % c.page_size;
    ReadSlot(c.key, page, slot, rows.kv_head, c.head_dim, b.padded_head,
             local.keys + i * b.padded_head);
    ReadSlot(c.value, page, slot, rows.kv_head, c.value_dim, b.padded_value,
             local.values + i * b.padded_value);
  }
}

HWY_INLINE void ReadQueries(const PagedAttention& c, const PagedBuffers& b,
                            const RowBlock& rows, const PagedLocal& local) {
  for (size_t r = 0; r < rows.count; ++r) {
    const char* from = static_cast<const char*>(c.query) +
                       rows.Place(c, r) * c.head_dim * SizeOf(c.dtype);
    float* row = local.query + r * b.padded_head;
    ReadAny(c.dtype, from, c.head_dim, b.padded_head, 1.0f, row);
  }
  for (size_t r = 0; r < rows.lanes; ++r) {
    const float* row = local.query + r * b.padded_head;
    for (size_t h = 0; h < c.head_dim; ++h) {
      local.query_t[h * rows.lanes + r] = r < rows.count ? row[h] : 0.0f;
    }
    const int64_t position = int64_t{c.position[rows.sequence]} +
                             static_cast<int64_t>(rows.Token(c, r));
    local.upper[r] = c.has_upper ? ToPosition(position + c.upper) : INT32_MAX;
    local.lower[r] = c.has_lower ? ToPosition(position - c.lower) : INT32_MIN;
    local.maximum[r] = kMinusInf;
    local.sum[r] = 0.0f;
  }
}

// tile[keys][lanes] = keys . rows
HWY_INLINE void Products(const PagedAttention& c, const PagedBuffers& b,
                         const RowBlock& rows, const PagedLocal& local, size_t n) {
  if (rows.count <= kDotRows && c.row_max == nullptr) {
    for (size_t i = 0; i < n; ++i) {
      float* to = local.tile + i * rows.lanes;
      hn::StoreU(hn::Zero(F32()), F32(), to);
      for (size_t r = 0; r < rows.count; ++r) {
        to[r] = DotRow(local.keys + i * b.padded_head,
                       local.query + r * b.padded_head, b.padded_head);
      }
    }
    return;
  }
  const Strided keys{local.keys, b.padded_head, 1};
  if (rows.lanes == hn::Lanes(F32())) {
    GemmPanel<1>(n, c.head_dim, keys, local.query_t, rows.lanes, local.tile,
                 rows.lanes, false);
  } else {
    Gemm(n, rows.lanes, c.head_dim, keys,
         {local.query_t, rows.lanes, PanelWidth()}, local.tile, rows.lanes, false);
  }
}

HWY_INLINE VF LogitOf(const PagedAttention& c, VF x) {
  const F32 d;
  if (c.is_raw) return x;
  const VF cap = hn::Set(d, c.soft_cap);
  x = hn::Mul(x, hn::Set(d, c.scale));
  if (c.soft_cap == 0.0f) return x;
  return hn::Mul(cap, hn::Tanh(d, hn::Div(x, cap)));
}

// From products to weights exp(logit - maximum), for one vector of rows.
HWY_INLINE void Softmax(const PagedAttention& c, const RowBlock& rows,
                        const PagedLocal& local, size_t lane, int64_t begin,
                        size_t n) {
  const F32 d;
  const I32 di;
  float* column = local.tile + lane;
  const VI upper = hn::LoadU(di, local.upper + lane);
  const VI lower = hn::LoadU(di, local.lower + lane);
  const VF masked = hn::Set(d, kMinusInf);
  const bool is_masked = c.has_upper || c.has_lower;
  const VF before = hn::LoadU(d, local.maximum + lane);
  VF now = before;
  for (size_t i = 0; i < n; ++i) {
    float* at = column + i * rows.lanes;
    VF x = LogitOf(c, hn::LoadU(d, at));
    if (is_masked) {
      const VI key = hn::Set(di, static_cast<int32_t>(begin + i));
      const auto seen = hn::And(hn::Le(key, upper), hn::Ge(key, lower));
      x = hn::IfThenElse(hn::RebindMask(d, seen), x, masked);
    }
    hn::StoreU(x, d, at);
    now = hn::Max(now, x);
  }
  const VF shift = hn::IfThenElse(hn::Eq(now, masked), hn::Zero(d), now);
  const VF unit = hn::Set(d, c.unit);
  const VF alpha = ExpF(hn::Mul(hn::Sub(before, shift), unit));
  VF sum = hn::Zero(d);  // of this tile alone: shorter chains round less
  for (size_t i = 0; i < n; ++i) {
    float* at = column + i * rows.lanes;
    const VF weight = ExpF(hn::Mul(hn::Sub(hn::LoadU(d, at), shift), unit));
    hn::StoreU(weight, d, at);
    sum = hn::Add(sum, weight);
  }
  hn::StoreU(now, d, local.maximum + lane);
  sum = hn::MulAdd(hn::LoadU(d, local.sum + lane), alpha, sum);
  hn::StoreU(sum, d, local.sum + lane);
  hn::StoreU(alpha, d, local.alpha + lane);
}

// Adds n keys from `key` on to the state of one head's rows.
HWY_INLINE void AddTile(const PagedAttention& c, const PagedBuffers& b,
                        const RowBlock& rows, const PagedLocal& local, int64_t key,
                        size_t n, bool first) {
  ReadTile(c, b, rows, local, key, n);
  Products(c, b, rows, local, n);
  for (size_t lane = 0; lane < rows.lanes; lane += hn::Lanes(F32())) {
    Softmax(c, rows, local, lane, key, n);
  }
  for (size_t r = 0; r < rows.count; ++r) {
    if (first || local.alpha[r] == 1.0f) continue;
    ScaleRow(local.out + r * b.padded_value, local.alpha[r], b.padded_value);
  }
  Gemm(rows.count, b.padded_value, n, {local.tile, 1, rows.lanes},
       {local.values, b.padded_value, PanelWidth()}, local.out, b.padded_value,
       !first);
}

// The unnormalised state of a block of rows, of `heads` key heads from that of the
// block on, after the keys [begin, end).
HWY_INLINE void Attend(const PagedAttention& c, const PagedBuffers& b,
                       RowBlock rows, size_t heads, const PagedLocal& local,
                       int64_t begin, int64_t end) {
  const size_t head = rows.kv_head;
  const int64_t step = heads == 1 ? kTileKeys : kSharedTileKeys;
  for (size_t h = 0; h < heads; ++h) {
    rows.kv_head = head + h;
    const PagedLocal own = local.From(b, h * rows.lanes);
    ReadQueries(c, b, rows, own);
    std::memset(own.out, 0, rows.count * b.padded_value * sizeof(float));
  }
  for (int64_t key = begin; key < end; key += step) {
    const size_t n = std::min(step, end - key);
    const size_t next = std::min(key + step, end), last = std::min(key + 2 * step, end);
    const size_t share = CeilDiv(last - next, heads);
    for (size_t h = 0; h < heads; ++h) {
      if (rows.count <= hn::Lanes(F32())) {
        const size_t from = std::min(next + h * share, last);
        PrefetchKeys(c, rows.sequence, head, heads, from, std::min(from + share, last));
      }
      rows.kv_head = head + h;
      AddTile(c, b, rows, local.From(b, h * rows.lanes), key, n, key == begin);
    }
  }
}

// Normalises a row's state, the sink included, and writes the results.
HWY_INLINE void Finish(const PagedAttention& c, const RowBlock& rows, size_t r,
                       const float* out, float maximum, float sum) {
  const size_t place = rows.Place(c, r);
  float alpha = 1.0f;
  if (c.sinks != nullptr) {
    const float sink = c.sinks[rows.Head(c, r)] / c.unit;
    const float now = std::max(maximum, sink);
    const float shift = FiniteOrZero(now);
    alpha = std::exp((maximum - shift) * c.unit);
    sum = sum * alpha + std::exp((sink - shift) * c.unit);
    maximum = now;
  }
  const float factor = sum == 0.0f ? 0.0f : alpha / sum;
  const size_t at = place * c.value_dim;
  switch (c.dtype) {
    case DType::kF32:
      WriteRow(out, factor, c.value_dim, static_cast<float*>(c.out) + at);
      break;
    case DType::kBF16:
      WriteRow(out, factor, c.value_dim, static_cast<hwy::bfloat16_t*>(c.out) + at);
      break;
    default:
      WriteRow(out, factor, c.value_dim, static_cast<hwy::float16_t*>(c.out) + at);
  }
  const float m = FiniteOrZero(maximum);
  if (c.out_wide != nullptr) WriteRow(out, factor, c.value_dim, c.out_wide + at);
  if (c.lse != nullptr) c.lse[place] = std::log(sum) + m * c.unit;
  if (c.row_max != nullptr) c.row_max[place] = m;
  if (c.row_sum != nullptr) c.row_sum[place] = sum;
}

// Merges the parts of a split block, in order, into the first. The head's rows
// begin at `row` of a part.
HWY_INLINE void Combine(const PagedAttention& c, const PagedBuffers& b,
                        const RowBlock& rows, size_t row, float* parts,
                        size_t splits) {
  const F32 d;
  const size_t width = b.padded_value;
  for (size_t r = 0; r < rows.count; ++r) {
    float* out = parts + (row + r) * width;
    float* maximum = parts + kSharedRows * width + row + r;
    float* sum = maximum + kSharedRows;
    for (size_t i = 1; i < splits; ++i) {
      const size_t next = i * b.part_size;
      const float now = std::max(*maximum, maximum[next]);
      const float shift = FiniteOrZero(now);
      const float left = std::exp((*maximum - shift) * c.unit);
      const float right = std::exp((maximum[next] - shift) * c.unit);
      const VF x = hn::Set(d, left), y = hn::Set(d, right);
      for (size_t v = 0; v < width; v += hn::Lanes(d)) {
        const VF more = hn::Mul(y, hn::LoadU(d, out + next + v));
        hn::StoreU(hn::MulAdd(x, hn::LoadU(d, out + v), more), d, out + v);
      }
      *sum = *sum * left + sum[next] * right;
      *maximum = now;
    }
    Finish(c, rows, r, out, *maximum, *sum);
  }
}

// Rows that no sequence owns.
inline void ClearRows(const PagedAttention& c, size_t begin, size_t end) {
  const size_t first = begin * c.heads, count = (end - begin) * c.heads;
  const size_t values = count * c.value_dim;
  std::memset(static_cast<char*>(c.out) + first * c.value_dim * SizeOf(c.dtype), 0,
              values * SizeOf(c.dtype));
  if (c.out_wide != nullptr) {
    std::fill_n(c.out_wide + first * c.value_dim, values, 0.0f);
  }
  if (c.lse != nullptr) std::fill_n(c.lse + first, count, kMinusInf);
  if (c.row_max != nullptr) std::fill_n(c.row_max + first, count, 0.0f);
  if (c.row_sum != nullptr) std::fill_n(c.row_sum + first, count, 0.0f);
}

// Fills first_block; returns the number of blocks of rows of a key head.
inline size_t CountBlocks(const PagedAttention& c, const PagedBuffers& b) {
  size_t blocks = 0, covered = 0;
  for (size_t s = 0; s < c.sequences; ++s) {
    b.first_block[s] = static_cast<int32_t>(blocks);
    const size_t tokens = c.query_length[s];
    blocks += CeilDiv(c.group() * tokens, kTileRows);
    if (tokens == 0) continue;
    const size_t first = c.first_row[s];
    if (first > covered) ClearRows(c, covered, first);
    covered = std::max(covered, first + tokens);
  }
  b.first_block[c.sequences] = static_cast<int32_t>(blocks);
  if (covered < c.tokens) ClearRows(c, covered, c.tokens);
  return blocks;
}

// How many key heads a task takes: more than one only if all sequences decode.
inline size_t HeadsPerTask(const PagedAttention& c) {
  const size_t lanes = hn::Lanes(F32());
  for (size_t s = 0; s < c.sequences; ++s) {
    const size_t rows = c.group() * static_cast<size_t>(c.query_length[s]);
    if (rows > lanes) return 1;
  }
  size_t heads = std::min(c.kv_heads, kSharedRows / lanes);
  while (c.kv_heads % heads != 0) --heads;
  return heads;
}

// Keeps a task's state as the part of a split block.
HWY_INLINE void StorePart(const PagedBuffers& b, size_t rows,
                          const PagedLocal& local, float* part) {
  std::memcpy(part, local.out, rows * b.padded_value * sizeof(float));
  part += kSharedRows * b.padded_value;
  std::memcpy(part, local.maximum, rows * sizeof(float));
  std::memcpy(part + kSharedRows, local.sum, rows * sizeof(float));
}

void Paged(const PagedAttention& c, Workers& workers, void* scratch) {
  Arena arena(scratch);
  const size_t threads = workers.Count();
  const PagedBuffers b(c.sequences, c.head_dim, c.value_dim, threads, arena);
  const size_t heads = HeadsPerTask(c), groups = c.kv_heads / heads;
  const size_t blocks = CountBlocks(c, b) * groups;
  if (blocks == 0) return;
  const size_t splits = blocks < 2 * threads ? CeilDiv(2 * threads, blocks) : 1;
  const auto rows_of = [&](size_t block) {
    const int32_t index = static_cast<int32_t>(block / groups);
    const int32_t* begin = b.first_block;
    const int32_t* end = begin + c.sequences + 1;
    const size_t s = std::upper_bound(begin, end, index) - begin - 1;
    return RowBlock(c, s, block % groups * heads, index - b.first_block[s]);
  };
  ParallelFor(workers, blocks * splits, [&](size_t task, size_t worker) {
    RowBlock rows = rows_of(task / splits);
    const PagedLocal local(b, worker);
    const KeyRange range(c, rows);
    const int64_t tiles = CeilDiv(range.end - range.begin, kTileKeys);
    const int64_t step = CeilDiv(tiles, splits) * kTileKeys;
    const int64_t offset = static_cast<int64_t>(task % splits) * step;
    const int64_t begin = std::min(range.begin + offset, range.end);
    Attend(c, b, rows, heads, local, begin, std::min(begin + step, range.end));
    if (splits > 1) {
      StorePart(b, heads * rows.lanes, local, b.parts + task * b.part_size);
      return;
    }
    const size_t head = rows.kv_head;
    for (size_t h = 0; h < heads; ++h) {
      rows.kv_head = head + h;
      const PagedLocal own = local.From(b, h * rows.lanes);
      for (size_t r = 0; r < rows.count; ++r) {
        Finish(c, rows, r, own.out + r * b.padded_value, own.maximum[r], own.sum[r]);
      }
    }
  });
  if (splits == 1) return;
  ParallelFor(workers, blocks * heads, [&](size_t task, size_t) {
    const size_t block = task / heads, h = task % heads;
    RowBlock rows = rows_of(block);
    rows.kv_head += h;
    Combine(c, b, rows, h * rows.lanes, b.parts + block * splits * b.part_size, splits);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tokumx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokumx {

HWY_EXPORT(Paged);

size_t PagedAttentionScratch(size_t sequences, size_t head_dim, size_t value_dim,
                             size_t threads) {
  Arena arena(nullptr);
  HWY_STATIC_NAMESPACE::PagedBuffers(sequences, head_dim, value_dim, threads,
                                     arena);
  return arena.used();
}

void RunPagedAttention(const PagedAttention& call, Workers& workers, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Paged)(call, workers, scratch);
}

}  // namespace tokumx
#endif  // HWY_ONCE
