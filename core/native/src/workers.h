// Runs the tasks of a kernel on the threads of whoever calls it.

#ifndef TOKUMX_NATIVE_WORKERS_H_
#define TOKUMX_NATIVE_WORKERS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace tokumx {

// Where a kernel gets its threads: XLA's pool, or a pool of this library for
// callers without XLA.
class Workers {
 public:
  virtual ~Workers() = default;

  // How many threads may run at once, the caller's included; at least 1.
  virtual size_t Count() const = 0;

  // Starts `fn` on another thread, now or later.
  virtual void Schedule(std::function<void()> fn) = 0;
};

namespace internal {

struct Loop {
  explicit Loop(size_t count) : tasks(count) {}
  const size_t tasks;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::atomic<size_t> worker{0};
};

}  // namespace internal

// Calls fn(task, worker) for every task in [0, tasks); worker < Count() is
// different for calls that run at the same time. Returns when all are done. A
// helper that starts late finds nothing left and touches nothing of the
// caller's, so a pool that is busy with other calls delays but cannot block.
template <class Fn>
void ParallelFor(Workers& workers, size_t tasks, const Fn& fn) {
  const size_t threads = std::min(workers.Count(), tasks);
  if (threads <= 1) {
    for (size_t task = 0; task < tasks; ++task) fn(task, size_t{0});
    return;
  }
  auto loop = std::make_shared<internal::Loop>(tasks);
  const Fn* body = &fn;
  auto work = [loop, body] {
    size_t task = loop->next.fetch_add(1, std::memory_order_relaxed);
    if (task >= loop->tasks) return;
    const size_t worker = loop->worker.fetch_add(1, std::memory_order_relaxed);
    for (; task < loop->tasks;
         task = loop->next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(task, worker);
      loop->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (size_t i = 1; i < threads; ++i) workers.Schedule(work);
  work();
  for (int spins = 0; loop->done.load(std::memory_order_acquire) < tasks;) {
    if (++spins > 1000) std::this_thread::yield();
  }
}

}  // namespace tokumx

#endif  // TOKUMX_NATIVE_WORKERS_H_
