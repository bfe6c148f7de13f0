// Pieces of one block of scratch memory.

#ifndef TOKUMX_NATIVE_ARENA_H_
#define TOKUMX_NATIVE_ARENA_H_

#include <cstddef>

#include "dtype.h"

namespace tokumx {

// Hands out pieces aligned to 64 bytes. Without memory it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* Array(size_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(count * sizeof(T), 64);
    return reinterpret_cast<T*>(at);
  }

  float* Floats(size_t count) { return Array<float>(count); }

  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_ARENA_H_
