// Threads kept between calls. A call borrows them, so a decode step does not pay for their creation.
#pragma once

#include <functional>

namespace flashkda::cpu {

// Cores this process may run on (its affinity when first asked).
int hardware_threads();

// Runs body(worker) for worker = 0 .. workers-1, worker 0 on the calling thread, and returns when all have returned.
// Calls from several threads at once are served one after the other. body must not throw.
void run_on_workers(int workers, const std::function<void(int)>& body);

}  // namespace flashkda::cpu
