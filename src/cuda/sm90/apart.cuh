// The fused kernel with its roles on multiprocessors of their own: makers prepare chunks, of all heads side by side,
// and leave them in global memory as a stage holds them; readers, two a head, carry the state through them. For
// heads that leave multiprocessors idle. docs/kernels/sm90a.md.
//
// Nothing is waited for in a circle: makers wait for nobody, and come first in the grid.
#pragma once

#include "cuda/ptx/grid.cuh"
#include "cuda/sm90/columns.cuh"
#include "cuda/sm90/consume.cuh"
#include "cuda/sm90/intra.cuh"
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/load.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// What a maker leaves of a chunk: a stage up to its values. F is a reader's.
inline constexpr uint32_t kImageBytes = offsetof(Stage<1>, v);
static_assert(kImageBytes == kApartImageBytes);

// As Variant. A maker's warpgroups are three groups of columns, intra, and one that asks and stores.
struct Maker {
  static constexpr int kSlices = 1, kStages = 5;
  static constexpr int kColumnWarps = 4, kColumnGroups = 3, kColumnBatch = 8;
  static constexpr int kStorers = 3;
  static_assert(kColumnGroups <= kStages && kStorers <= kStages,
                "who takes a chunk of a stage is at most a lap behind");
};
// A reader's are its consumers and one that asks for images and makes F.
struct Reader {
  static constexpr int kSlices = 1, kSharers = 1, kStages = 5;
  static constexpr int kConsumerRegisters = 192, kImageRegisters = 48, kIdleRegisters = 24;
};
static_assert(kReadersOfAHead == D / 64 / Reader::kSlices);

// 96 registers a thread at launch: 65,536 in a block at most.
inline constexpr int kApartThreads = 128 * (Maker::kColumnGroups + 2), kApartRegisters = 96;

// The chunks of a maker: every makers-th of all runs' first chunks, then of their second ones, and so on.
class Work {
 public:
  __device__ __forceinline__ explicit Work(const ApartParams& p)
      : layout_(p.fused.layout),
        makers_(p.makers),
        runs_(p.runs),
        run_(static_cast<int>(blockIdx.x) % p.runs),
        chunk_(static_cast<int>(blockIdx.x) / p.runs) {
    int64_t longest = layout_.T;
    if (layout_.begin != nullptr) {
      longest = 0;
      for (int n = 0; n < layout_.N; ++n) longest = max(longest, length(n));
    }
    end_ = chunks(longest);
    pass_over();
  }

  __device__ __forceinline__ bool any() const { return chunk_ < end_; }
  __device__ __forceinline__ int chunk() const { return chunk_; }
  __device__ __forceinline__ Item item() const { return item_of(layout_, run_ / layout_.HV, run_ % layout_.HV); }
  __device__ __forceinline__ void go_on(int count) {
    for (int i = 0; i < count && any(); ++i) {
      step();
      pass_over();
    }
  }

 private:
  __device__ __forceinline__ static int chunks(int64_t length) {
    return static_cast<int>((length + kChunk - 1) / kChunk);
  }
  __device__ __forceinline__ int64_t length(int n) const { return layout_.begin[n + 1] - layout_.begin[n]; }
  __device__ __forceinline__ void step() {
    run_ += makers_;
    while (run_ >= runs_) run_ -= runs_, ++chunk_;
  }
  __device__ __forceinline__ void pass_over() {  // chunks that shorter sequences do not have
    if (layout_.begin == nullptr) return;
    while (any() && chunk_ >= chunks(length(run_ / layout_.HV))) step();
  }

  const Layout& layout_;
  int makers_, runs_, run_, chunk_, end_;
};

__device__ __forceinline__ int64_t image_index(const Item& item, int HV, int c) {
  return (item.first_chunk + c) * HV + item.hv;
}

// A maker's roles. Each goes through the same list of chunks; its i-th is in stage i % kStages.
__device__ __forceinline__ void make_columns(Shared<Maker>& shared, const ApartParams& p, int group) {
  const FusedParams& f = p.fused;
  const int warp = uniform_warp(), lane = threadIdx.x % 32, channel = warp % 2 * 64 + 2 * lane;
  Work work(p);
  work.go_on(group);
  HeadGate gate;
  Scalars scalars(f, lane);
  Item item;
  const auto ask = [&] {
    if (!work.any()) return;
    item = work.item();
    gate.ask(f, item.hv, channel);
    if (warp == 0) scalars.ask_for_b(f, item, work.chunk(), lane);
  };
  ask();
  for (int i = group; work.any(); i += Maker::kColumnGroups) {
    const int s = i % Maker::kStages, c = work.chunk();
    const Columns columns = gate.take(f);
    const int rows = item.rows(c);
    const float b = warp == 0 ? scalars.take_b(f, item, c, lane) : 0.0f;
    work.go_on(Maker::kColumnGroups);
    ask();
    // The stage's last chunk is another group's, which may be so far behind that its rows are not there yet: then the
    // parity of ours would be that of the chunk before it.
    if (i >= Maker::kStages) ptx::barrier_wait(shared.columns[s], (i / Maker::kStages - 1) & 1);
    ptx::barrier_wait(shared.raw[s], i / Maker::kStages & 1);
    prepare_chunk<Maker>(shared.stages[s], shared.shrink[s], columns, scalars.frame, f.scale, group, warp, rows,
                         [&] { return b; });
    ptx::barrier_arrive(shared.columns[s]);
  }
}

__device__ __forceinline__ void make_intra(Shared<Maker>& shared, const ApartParams& p) {
  const int warp = uniform_warp();
  const float constant = ptx::exp2_approx(-kChunk * centre(p.fused.lower_bound)) / (warp < 2 ? kUncut : 1.0f);
  Work work(p);
  for (int i = 0; work.any(); ++i, work.go_on(1)) {
    const int s = __shfl_sync(0xffffffffu, i % Maker::kStages, 0), lane = ptx::opaque(threadIdx.x % 32);
    ptx::barrier_wait(shared.columns[s], i / Maker::kStages & 1);
    solve_chunk(shared.stages[s], shared.scratch, i % 2, constant, warp, lane);
    ptx::async_proxy_fence();
    ptx::barrier_arrive(shared.full[s]);
  }
}

// By one thread: raw rows to the stages that have become free.
__device__ __forceinline__ void ask_for_rows(Shared<Maker>& shared, const ApartParams& p) {
  Work work(p);
  for (int i = 0; work.any(); ++i, work.go_on(1)) {
    const int s = i % Maker::kStages;
    if (i >= Maker::kStages) ptx::barrier_wait(shared.empty[s], (i / Maker::kStages - 1) & 1);
    load(shared, s, p.fused, work.item(), work.chunk(), 0, false);
  }
}

// By one thread of Maker::kStorers, which take chunks in turns: images to global memory, and word that they are there.
__device__ __forceinline__ void store_images(Shared<Maker>& shared, const ApartParams& p, int storer) {
  Work work(p);
  work.go_on(storer);
  for (int i = storer; work.any(); i += Maker::kStorers, work.go_on(Maker::kStorers)) {
    const int s = i % Maker::kStages;
    const int64_t image = image_index(work.item(), p.fused.layout.HV, work.chunk());
    ptx::barrier_wait(shared.full[s], i / Maker::kStages & 1);
    ptx::store_bytes(p.images + image * kImageBytes, &shared.stages[s], kImageBytes);
    ptx::stores_have_read();
    ptx::barrier_arrive(shared.empty[s]);
    ptx::stores_have_arrived();  // seen by this thread from now on, and by whom it tells
    ptx::set_flag(p.ready[image]);
  }
}

// A reader's warpgroup beside its consumers: warp 0 asks for images as they become ready, warps 2 and 3 make F.
__device__ __forceinline__ void read_images(Shared<Reader>& shared, const ApartParams& p, const Item& item,
                                            int column) {
  constexpr int kRing = Reader::kStages;
  const FusedParams& f = p.fused;
  const int warp = uniform_warp(), lane = threadIdx.x % 32;
  if (warp == 0) {
    int known = 0;  // chunks whose images are there, up to a warp's number ahead
    for (int c = 0; c < item.chunks; ++c) {
      const int s = c % kRing;
      Stage<Reader::kSlices>& stage = shared.stages[s];
      if (c == known) {
        uint32_t missing;
        do {
          const int ahead = min(c + lane, item.chunks - 1);
          const bool there = ptx::flag_is_set(p.ready[image_index(item, f.layout.HV, ahead)]);
          missing = __ballot_sync(0xffffffffu, !there);
        } while (missing & 1);
        known = min(item.chunks, c + (missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1));
        ptx::async_proxy_fence_global();
      }
      if (lane == 0) {
        if (c >= kRing) ptx::barrier_wait(shared.empty[s], (c / kRing - 1) & 1);
        ptx::barrier_expect(shared.raw[s], kImageBytes + sizeof(stage.v));
        ptx::load_bytes(&stage, p.images + image_index(item, f.layout.HV, c) * kImageBytes, kImageBytes, shared.raw[s]);
        ptx::load_box(stage.v[0], f.v, column, item.hv, item.token(c), static_cast<int32_t>(item.batch), shared.raw[s]);
      }
      __syncwarp();  // what a lane has seen of the flags, lane 0 has from here on
    }
  } else if (warp >= 2) {
    const float centred = centre(f.lower_bound), aside = ptx::exp2_approx(-kChunk * centred);
    float2 tail = make_float2(kHalf * centred, kHalf * centred);  // the first state comes in no frame
    for (int c = 0; c < item.chunks; ++c) {
      const int s = c % kRing;
      ptx::barrier_wait(shared.raw[s], c / kRing & 1);
      put_F(shared.stages[s], aside, 2 * (lane + (warp - 2) * 32), tail);
      ptx::barrier_arrive(shared.full[s]);
    }
  }
}

// Blocks: p.makers makers, then of each run its readers.
__global__ void __launch_bounds__(kApartThreads, 1) apart(const __grid_constant__ ApartParams p) {
  extern __shared__ char dynamic[];
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (static_cast<int>(blockIdx.x) < p.makers) {
    auto& shared = *reinterpret_cast<Shared<Maker>*>(dynamic);
    if (threadIdx.x == 0) {
      for (int s = 0; s < Maker::kStages; ++s) {
        ptx::barrier_init(shared.raw[s], 1);
        ptx::barrier_init(shared.columns[s], 128);
        ptx::barrier_init(shared.full[s], 128);
        ptx::barrier_init(shared.empty[s], 1);
      }
      ptx::barrier_init_fence();
    }
    clear_triangles(shared, kApartThreads);
    ptx::async_proxy_fence();
    ptx::wait_for_previous();
    __syncthreads();
    if (group < Maker::kColumnGroups) {
      make_columns(shared, p, group);
    } else if (group == Maker::kColumnGroups) {
      make_intra(shared, p);
    } else if (threadIdx.x % 32 == 0) {
      const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
      if (warp == 0) ask_for_rows(shared, p);
      if (warp > 0) store_images(shared, p, warp - 1);
    }
    return;
  }
  auto& shared = *reinterpret_cast<Shared<Reader>*>(dynamic);
  const int reader = static_cast<int>(blockIdx.x) - p.makers, run = reader / kReadersOfAHead;
  const int column = reader % kReadersOfAHead * 64, HV = p.fused.layout.HV;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Reader::kStages; ++s) {
      ptx::barrier_init(shared.raw[s], 1);
      ptx::barrier_init(shared.full[s], 64);
      ptx::barrier_init(shared.empty[s], 128);
    }
    ptx::barrier_init_fence();
  }
  ptx::wait_for_previous();
  const Item item = item_of(p.fused.layout, run / HV, run % HV);
  __syncthreads();
  if (group == 0) {
    ptx::set_registers<kApartRegisters, Reader::kConsumerRegisters>();
    run_consumer(shared, p.fused, item, 0, column, 0);
  } else if (group == 1) {
    ptx::set_registers<kApartRegisters, Reader::kImageRegisters>();
    read_images(shared, p, item, column);
  } else {
    ptx::set_registers<kApartRegisters, Reader::kIdleRegisters>();
  }
}

}  // namespace flashkda::cuda::sm90
