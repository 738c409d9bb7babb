#include "cpu/thread_pool.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __unix__
#include <pthread.h>
#endif

namespace flashkda::cpu {
namespace {

class Pool {
 public:
  void run(int workers, const std::function<void(int)>& body) {
    const std::lock_guard<std::mutex> one_call(call_mutex_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<int>(threads_.size()) < workers - 1) {
        const int worker = static_cast<int>(threads_.size()) + 1;
        threads_.emplace_back([this, worker] { serve(worker); });
      }
      body_ = &body;
      workers_ = workers;
      remaining_ = workers - 1;
      ++generation_;
    }
    start_.notify_all();
    body(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return remaining_ == 0; });
    body_ = nullptr;
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

 private:
  void serve(int worker) {
    unsigned seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (worker >= workers_ || body_ == nullptr) continue;
      const std::function<void(int)>& body = *body_;
      lock.unlock();
      body(worker);
      lock.lock();
      if (--remaining_ == 0) done_.notify_one();
    }
  }

  std::mutex call_mutex_;  // held for a whole call
  std::mutex mutex_;       // guards everything below
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* body_ = nullptr;
  int workers_ = 0, remaining_ = 0;
  unsigned generation_ = 0;
  bool stop_ = false;
};

Pool* g_pool = nullptr;
std::mutex g_pool_mutex;

// A forked child has none of the parent's threads: it forgets the pool (whose destructor would wait for them) and
// makes its own. The mutex is taken across the fork so that the child finds it in a known state.
#ifdef __unix__
void before_fork() { g_pool_mutex.lock(); }
void after_fork_in_parent() { g_pool_mutex.unlock(); }
void after_fork_in_child() {
  g_pool = nullptr;
  g_pool_mutex.unlock();
}
#endif

Pool& pool() {
  const std::lock_guard<std::mutex> lock(g_pool_mutex);
  if (g_pool == nullptr) {
#ifdef __unix__
    static const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    static_cast<void>(registered);
#endif
    // Never destroyed: at exit other threads may still be inside a call.
    g_pool = new Pool;
  }
  return *g_pool;
}

}  // namespace

int hardware_threads() {
  static const int count = [] {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
    const int n = static_cast<int>(std::thread::hardware_concurrency());
    return n > 0 ? n : 1;
  }();
  return count;
}

void run_on_workers(int workers, const std::function<void(int)>& body) {
  if (workers <= 1) {
    body(0);
    return;
  }
  pool().run(workers, body);
}

}  // namespace flashkda::cpu
