#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/validate.hpp"
#include "cuda/backend.hpp"
#include "cuda/error.hpp"
#include "cuda/plan.cuh"
#include "cuda/sm80/affine.cuh"
#include "cuda/sm80/combine.cuh"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/prepare.cuh"
#include "cuda/sm80/recur.cuh"
#include "cuda/sm80/recurrent.cuh"
#include "cuda/sm90/bounds.hpp"
#include "cuda/split_plan.hpp"
#ifdef FLASHKDA_WITH_SM90
#include "cuda/sm90/launch.hpp"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"
#include "cuda/sm90/tensor_map.hpp"
#endif

namespace flashkda::cuda {
namespace {

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// The longest sequence that the portable path gives to its recurrent kernel: kEvery where no other kernel is needed, -1
// for none. The host does not know the lengths of a packed batch, so what a mean allows is sorted out on the device.
constexpr int64_t kEvery = INT64_MAX;
constexpr int64_t kFewTokens = 8;

int64_t recurrent_tokens(const Problem& p) {
  if (present(p.checkpoints) || present(p.intermediate_states) || p.batch_invariant) return -1;
  if (p.T <= kFewTokens) return kEvery;
  if (!p.packed()) return -1;
  if (p.T == p.N) return kEvery;  // a step of decoding: every length is 1, or it takes longer
  return p.T <= p.N * kFewTokens ? kFewTokens : -1;
}

// What runs a problem: the fused kernel, or prepare and recur of an engine, with sequences cut into segments or not.
struct Path {
  bool fused = false;
  bool apart = false;  // fused: chunks are prepared on multiprocessors of their own
  Engine engine = Engine::kMmaSync;
  bool split = false;
};

size_t image_bytes(const Problem& p, Path path) {
  if (path.fused) return sm90::kApartImageBytes;
#ifdef FLASHKDA_WITH_SM90
  if (path.engine == Engine::kWgmma) return sm90::image_bytes();
#endif
  return static_cast<size_t>(p.K == 128 ? Image<128>::kBytes : Image<64>::kBytes);
}

int multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

// What lies where in the workspace, in bytes. The one place of its formula.
struct Workspace {
  int64_t begin = 0, chunks = 0, order = 0, intermediate_begin = 0, segments = 0, images = 0, bytes = 0;
  int64_t ends = 0, transitions = 0, forgets = 0, ready = 0;
  int64_t chunk_bound = 0;  // chunks of all sequences, at most
  SplitPlan split;

  Workspace(const Problem& p, Path path) {
    const bool fused = path.fused;
    const int64_t chunk = chunk_tokens(path.engine);
    chunk_bound = p.packed() ? p.T / chunk + p.N : p.B * ((p.T + chunk - 1) / chunk);
    if (!fused && recurrent_tokens(p) == kEvery) return;
    if (p.packed()) {
      begin = take((p.N + 1) * 8);
      chunks = take((p.N + 1) * 4);
      if (present(p.intermediate_states)) intermediate_begin = take((p.N + 1) * 4);
      if (fused && !path.apart) order = take(p.N * 4);
      if (path.split) segments = take((p.N + 1) * 4);
    }
    if (fused && !path.apart) return;
    images = take(chunk_bound * p.HV * static_cast<int64_t>(image_bytes(p, path)));
    if (fused) ready = take(chunk_bound * p.HV * 4);
    if (!path.split) return;
    split = plan_split(p, path.engine, multiprocessors(p.q.device_index));
    ends = take(split.segments * p.HV * p.V * p.K * 4);
    transitions =
        take(split.segments * p.HV * (p.K == 128 ? sm80::Transition<128>::kBytes : sm80::Transition<64>::kBytes));
    forgets = take(split.segments * p.HV * 4);
  }

 private:
  int64_t take(int64_t count) {
    const int64_t offset = bytes;
    bytes = round_up(bytes + count, FKDA_WORKSPACE_ALIGNMENT);
    return offset;
  }
};

Rows rows_of(const fkda_tensor& t) { return {t.data, t.stride[0], t.stride[1], t.ndim > 3 ? t.stride[2] : 1, t.dtype}; }

// The trailing dimensions of a state view are [slots,HV,rows,columns].
States states_of(const fkda_tensor& t, const Problem& p) {
  if (!present(t)) return {};
  return {t.data, t.stride[t.ndim - 4], t.stride[t.ndim - 3], t.dtype, p.state_layout == FKDA_STATE_K_FIRST};
}

Integers integers_of(const fkda_tensor& t) { return {t.data, t.dtype == FKDA_INT64}; }

// FLASH_KDA_DEBUG=1: the values that live on the device are copied to the host and checked there, like a CPU tensor's.
void check_device_values(const Problem& p, cudaStream_t stream) {
  Problem host = p;
  std::vector<std::vector<char>> copies;
  for (fkda_tensor* t : {&host.cu_seqlens, &host.state_indices, &host.checkpoint_offsets}) {
    if (!present(*t)) continue;
    int64_t count = 1;
    for (int d = 0; d < t->ndim; ++d) count += (t->shape[d] - 1) * t->stride[d];
    if (std::min(t->shape[0], t->shape[t->ndim - 1]) == 0) count = 0;
    copies.emplace_back(static_cast<size_t>(count * dtype_size(t->dtype)));
    check(cudaMemcpyAsync(copies.back().data(), t->data, copies.back().size(), cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    t->data = copies.back().data();
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check_values(host);
}

bool debugging() {
  const char* value = std::getenv("FLASH_KDA_DEBUG");
  return value != nullptr && std::strcmp(value, "0") != 0 && *value != '\0';
}

void check_blocks(int64_t blocks, const char* what) {
  if (blocks > INT_MAX) {
    throw_error(FKDA_UNSUPPORTED, "cuda: %lld blocks of %s, at most %d can be launched", static_cast<long long>(blocks),
                what, INT_MAX);
  }
}

// How the batch falls into sequences. Launches the plan of a packed one, and what clears flags.
Layout make_layout(const Problem& p, const Workspace& w, char* workspace, Path path, cudaStream_t stream) {
  Layout layout{};
  layout.left_out = -1;
  layout.T = p.T;
  layout.N = static_cast<int32_t>(p.N);
  layout.HV = static_cast<int32_t>(p.HV);
  layout.group = static_cast<int32_t>(p.group());
  const int64_t chunk = chunk_tokens(path.engine);
  layout.row_chunks = static_cast<int32_t>((p.T + chunk - 1) / chunk);
  layout.row_segments = w.split.row_segments;
  Cleared cleared{};
  if (path.apart) cleared = {reinterpret_cast<int32_t*>(workspace + w.ready), w.chunk_bound * p.HV};
  if (!p.packed() || w.bytes == 0) {
    if (cleared.count > 0) launch_clear(cleared, stream);
    return layout;
  }
  if (!path.fused) layout.left_out = recurrent_tokens(p);
  PlanParams plan{};
  plan.cleared = cleared;
  plan.chunk_tokens = static_cast<int32_t>(chunk);
  plan.left_out = layout.left_out;
  plan.cu_seqlens = integers_of(p.cu_seqlens);
  plan.T = p.T;
  plan.N = layout.N;
  plan.begin = reinterpret_cast<int64_t*>(workspace + w.begin);
  plan.chunks = reinterpret_cast<int32_t*>(workspace + w.chunks);
  if (present(p.intermediate_states)) {
    plan.intermediate_every = p.intermediate_every;
    plan.intermediate_begin = reinterpret_cast<int32_t*>(workspace + w.intermediate_begin);
  }
  if (path.fused && !path.apart) plan.order = reinterpret_cast<int32_t*>(workspace + w.order);
  if (w.split.segments > 0) {
    plan.segment_chunks = static_cast<int32_t>(w.split.segment_chunks);
    plan.segments = reinterpret_cast<int32_t*>(workspace + w.segments);
  }
  launch_plan(plan, stream);
  layout.begin = plan.begin;
  layout.chunks = plan.chunks;
  layout.segments = plan.segments;
  return layout;
}

// Which states of the caller's a sequence has: initial, final, slots and slot_count of either path's parameters.
template <typename Params>
void set_states(Params& params, const Problem& p) {
  params.initial = states_of(p.initial_state, p);
  params.final = states_of(p.final_state, p);
  params.slot_count = p.N;
  if (!present(p.state_indices)) return;
  params.slots = integers_of(p.state_indices);
  params.slot_count = INT64_MAX;
  for (const fkda_tensor* pool : {&p.initial_state, &p.final_state}) {
    if (present(*pool)) params.slot_count = std::min(params.slot_count, pool->shape[0]);
  }
}

#ifdef FLASHKDA_WITH_SM90
void launch_fused(const Problem& p, Path path, char* workspace, cudaStream_t stream) {
  const Workspace w(p, path);
  sm90::ApartParams apart{};
  sm90::FusedParams& fused = apart.fused;
  fused.layout = make_layout(p, w, workspace, path, stream);
  if (p.packed() && !path.apart) fused.order = reinterpret_cast<const int32_t*>(workspace + w.order);
  fused.q = sm90::make_tensor_map(p.q);
  fused.k = sm90::make_tensor_map(p.k);
  fused.g = sm90::make_tensor_map(p.g);
  fused.v = sm90::make_tensor_map(p.v);
  fused.beta = rows_of(p.beta);
  fused.out = rows_of(p.out);
  fused.A_log = static_cast<const float*>(p.A_log.data);
  fused.dt_bias = static_cast<const float*>(p.dt_bias.data);
  fused.lower_bound = p.lower_bound;
  fused.scale = p.scale;
  fused.beta_activation = p.beta_activation;
  set_states(fused, p);
  const int64_t heads = p.N * p.HV;
  const int processors = multiprocessors(p.q.device_index);
  if (path.apart) {
    apart.images = workspace + w.images;
    apart.ready = reinterpret_cast<ptx::Flag*>(workspace + w.ready);
    apart.runs = static_cast<int32_t>(heads);
    apart.makers = makers(heads, processors);
    sm90::launch_apart(apart, stream);
  } else if (two_each(heads, processors)) {
    sm90::launch_fused<1>(fused, heads, p.packed(), stream);
  } else {
    sm90::launch_fused<2>(fused, heads, p.packed(), stream);
  }
}
#endif

// The kernels of prepare and recur by engine.
template <int K>
class Kernels {
 public:
  Kernels(const Problem& p, [[maybe_unused]] Engine engine, cudaStream_t stream)
      : processors_(multiprocessors(p.q.device_index)), stream_(stream) {
#ifdef FLASHKDA_WITH_SM90
    wgmma_ = engine == Engine::kWgmma;
    if (wgmma_) v_ = sm90::make_tensor_map(p.v);
#endif
  }

  // planned: right behind the plan kernel.
  void prepare(const sm80::PrepareParams& p, int64_t blocks, [[maybe_unused]] bool planned) const {
#ifdef FLASHKDA_WITH_SM90
    if (wgmma_) return sm90::launch_prepare(p, blocks, planned, stream_);
#endif
    sm80::launch_prepare<K>(p, blocks, stream_);
  }

  void affine(const sm80::AffineParams& p, int64_t runs) const {
#ifdef FLASHKDA_WITH_SM90
    if (wgmma_) return sm90::launch_affine(p, v_, runs, stream_);
#endif
    sm80::launch_affine<K>(p, runs, stream_);
  }

  void combine(const sm80::CombineParams& p, int64_t heads) const {
#ifdef FLASHKDA_WITH_SM90
    return sm80::launch_combine<K>(p, heads, wgmma_, stream_);
#else
    sm80::launch_combine<K>(p, heads, false, stream_);
#endif
  }

  // runs: of segments if there are any, else of sequences, times value heads. chunks: of all runs, at most.
  void recur(const sm80::RecurParams& p, int64_t runs, [[maybe_unused]] int64_t chunks) const {
#ifdef FLASHKDA_WITH_SM90
    if (wgmma_) {
      // The slices of a run in blocks of their own where there is an SM for each, and where runs are short: one block's
      // states are on their way while another walks.
      if (two_each(runs, processors_) || chunks <= 6 * runs) {
        return sm90::launch_recur<1>(p, v_, runs, processors_, stream_);
      }
      return sm90::launch_recur<2>(p, v_, runs, processors_, stream_);
    }
#endif
    if constexpr (K == 128) {
      // Two tiles a warp where the runs alone fill the machine, twice the blocks where they do not. Segments, of which
      // two blocks find room on an SM, fill it later.
      if ((p.ends != nullptr ? runs : 2 * runs) > processors_) {
        sm80::launch_recur<K, 2>(p, K, runs, stream_);
        return;
      }
    }
    sm80::launch_recur<K, 1>(p, K, runs, stream_);
  }

 private:
  int processors_;
  cudaStream_t stream_;
#ifdef FLASHKDA_WITH_SM90
  bool wgmma_;
  CUtensorMap v_;
#endif
};

template <int K>
void launch_two_kernels(const Problem& p, Path path, char* workspace, cudaStream_t stream) {
  const Workspace w(p, path);
  const Layout layout = make_layout(p, w, workspace, path, stream);

  const Kernels<K> kernels(p, path.engine, stream);
  const int64_t heads = p.N * p.HV, few = recurrent_tokens(p);
  if (few >= 0) {
    sm80::RecurrentParams recurrent{};
    recurrent.layout = layout;
    if (p.packed()) recurrent.cu_seqlens = integers_of(p.cu_seqlens);
    recurrent.longest = few;
    recurrent.q = rows_of(p.q);
    recurrent.k = rows_of(p.k);
    recurrent.g = rows_of(p.g);
    recurrent.v = rows_of(p.v);
    recurrent.beta = rows_of(p.beta);
    recurrent.out = rows_of(p.out);
    recurrent.A_log = static_cast<const float*>(p.A_log.data);
    recurrent.dt_bias = static_cast<const float*>(p.dt_bias.data);
    recurrent.lower_bound = p.lower_bound;
    recurrent.scale = p.scale;
    recurrent.gate = p.gate;
    recurrent.beta_activation = p.beta_activation;
    recurrent.qk_l2norm = p.qk_l2norm != 0;
    set_states(recurrent, p);
    sm80::launch_recurrent<K>(recurrent, heads, multiprocessors(p.q.device_index), stream);
    if (few == kEvery) return;
  }

  sm80::PrepareParams prepare{};
  prepare.layout = layout;
  prepare.q = rows_of(p.q);
  prepare.k = rows_of(p.k);
  prepare.g = rows_of(p.g);
  prepare.beta = rows_of(p.beta);
  prepare.A_log = static_cast<const float*>(p.A_log.data);
  prepare.dt_bias = static_cast<const float*>(p.dt_bias.data);
  prepare.lower_bound = p.lower_bound;
  prepare.scale = p.scale;
  prepare.gate = p.gate;
  prepare.beta_activation = p.beta_activation;
  prepare.qk_l2norm = p.qk_l2norm != 0;
  prepare.tame = sm90::is_tame(p);
  prepare.images = workspace + w.images;
  if (w.chunk_bound > 0) kernels.prepare(prepare, w.chunk_bound * p.HV, layout.begin != nullptr && few < 0);

  sm80::RecurParams recur{};
  recur.layout = layout;
  recur.v = rows_of(p.v);
  recur.out = rows_of(p.out);
  recur.images = workspace + w.images;
  set_states(recur, p);
  recur.checkpoints = states_of(p.checkpoints, p);
  if (present(p.checkpoints)) {
    recur.offsets = integers_of(p.checkpoint_offsets);
    recur.offset_stride = p.checkpoint_offsets.stride[0];
    recur.checkpoint_row = p.checkpoints.stride[0];
    recur.checkpoint_count = static_cast<int32_t>(p.P);
  }
  recur.intermediate = states_of(p.intermediate_states, p);
  if (present(p.intermediate_states)) {
    recur.intermediate_batch = p.intermediate_states.stride[0];
    recur.intermediate_count = p.intermediate_states.shape[1];
    if (p.packed()) recur.intermediate_begin = reinterpret_cast<const int32_t*>(workspace + w.intermediate_begin);
    recur.intermediate_every = p.intermediate_every;
  }
  if (w.split.segments > 0) {
    sm80::AffineParams affine{};
    affine.layout = layout;
    affine.v = recur.v;
    affine.images = recur.images;
    affine.initial = recur.initial;
    affine.slots = recur.slots;
    affine.slot_count = recur.slot_count;
    // What comes before a window that forgets must not have grown on its way: |I - b k k^T| <= 1 for b |k|^2 <= 2.
    affine.shortcut = p.sequence_split != FKDA_SPLIT_EXACT && p.qk_l2norm && p.beta_activation != FKDA_BETA_ACTIVATED;
    affine.ends = recur.ends = reinterpret_cast<float*>(workspace + w.ends);
    affine.transitions = workspace + w.transitions;
    affine.forgets = reinterpret_cast<int32_t*>(workspace + w.forgets);
    kernels.affine(affine, w.split.segments * p.HV);
    kernels.combine({layout, affine.ends, affine.transitions, affine.forgets}, heads);
  }
  kernels.recur(recur, w.split.segments > 0 ? w.split.segments * p.HV : heads, w.chunk_bound * p.HV);
}

}  // namespace

bool available() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver: not an error of a later call
    return false;
  }
  for (int device = 0; device < count; ++device) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8)
      return true;
  }
  return false;
}

const char* detail() { return "sm_80 and later; the fastest of the paths below"; }
const char* detail_fused() { return "one fused kernel on sm_90 where it fits, else as cuda_portable"; }
const char* detail_apart() {
  return "the fused kernel, chunks prepared on multiprocessors of their own, where heads leave them; else as cuda_fused";
}
const char* detail_wgmma() { return "two kernels on wgmma on sm_90 where they fit, else as cuda_portable"; }
const char* detail_split() { return "as cuda_wgmma, with sequences cut into segments"; }
const char* detail_portable() { return "two kernels on mma.sync, one for sequences of a few tokens, sm_80 and later"; }
const char* detail_portable_split() { return "as cuda_portable, with sequences cut into segments"; }

void check_problem(const Problem& p) {
  constexpr int64_t kAlignment = 16;
  const std::pair<const char*, const fkda_tensor*> views[] = {{"q", &p.q},
                                                              {"k", &p.k},
                                                              {"v", &p.v},
                                                              {"g", &p.g},
                                                              {"out", &p.out},
                                                              {"dt_bias", &p.dt_bias},
                                                              {"initial_state", &p.initial_state},
                                                              {"final_state", &p.final_state},
                                                              {"checkpoints", &p.checkpoints},
                                                              {"intermediate_states", &p.intermediate_states}};
  for (const auto& [name, t] : views) {
    if (!present(*t)) continue;
    const int64_t size = dtype_size(t->dtype);
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(t->data) % kAlignment);
    if (past != 0) {
      throw_error(FKDA_INVALID_ARGUMENT,
                  "%s: its address is %lld bytes past a multiple of 16, the cuda backend needs 16-byte alignment", name,
                  static_cast<long long>(past));
    }
    for (int d = 0; d + 1 < t->ndim; ++d) {
      if (t->shape[d] > 1 && t->stride[d] * size % kAlignment != 0) {
        throw_error(FKDA_INVALID_ARGUMENT,
                    "%s: got stride %lld (%lld bytes) in dimension %d, the cuda backend needs multiples of 16 bytes",
                    name, static_cast<long long>(t->stride[d]), static_cast<long long>(t->stride[d] * size), d);
      }
    }
  }
  const Workspace w(p, {.split = true});
  check_blocks(w.chunk_bound * p.HV, "the prepare kernel");
  check_blocks(std::max(w.split.segments, p.N) * p.HV * (p.V / sm80::recur_columns(1)), "the recurrence kernel");
  check_blocks(p.N * p.HV * (p.V / sm80::kCombineColumns), "the chain over segments");
}

namespace {

#ifdef FLASHKDA_WITH_SM90
bool is_sm90(const Problem& p) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, p.q.device_index), "cudaDeviceGetAttribute");
  return major == 9;
}

// What the Hopper kernels ask of a problem. They see states at multiples of 32 tokens only.
bool hopper_fits(const Problem& p) {
  return p.K == sm90::D && p.V == sm90::D && !present(p.checkpoints) && !present(p.intermediate_states) &&
         !p.batch_invariant && sm90::mappable(p.v) && is_sm90(p);
}
#endif

bool fused_fits([[maybe_unused]] const Problem& p) {
#ifdef FLASHKDA_WITH_SM90
  if (!sm90::is_tame(p) || p.out.dtype != FKDA_BFLOAT16) return false;
  for (const fkda_tensor* t : {&p.q, &p.k, &p.g, &p.v}) {
    if (t->dtype != FKDA_BFLOAT16 || !sm90::mappable(*t)) return false;
  }
  return hopper_fits(p);
#else
  return false;
#endif
}

Engine best_engine([[maybe_unused]] const Problem& p) {
#ifdef FLASHKDA_WITH_SM90
  if (recurrent_tokens(p) < 0 && hopper_fits(p)) return Engine::kWgmma;
#endif
  return Engine::kMmaSync;
}

bool may_split(const Problem& p) {
  return p.sequence_split != FKDA_SPLIT_NEVER && !p.batch_invariant && recurrent_tokens(p) < 0 && p.N * p.HV > 0 &&
         p.B * p.T > 0;
}

Path portable(const Problem&) { return {}; }
Path portable_split(const Problem& p) { return {.split = may_split(p)}; }
Path wgmma(const Problem& p) { return {.engine = best_engine(p)}; }
Path split(const Problem& p) { return {.engine = best_engine(p), .split = may_split(p)}; }
Path fused(const Problem& p) { return {.fused = fused_fits(p)}; }
Path apart(const Problem& p) {  // or as fused() says
  Path path = fused(p);
  if (!path.fused || p.N * p.HV == 0) return path;
  path.apart = std::isfinite(apart_microseconds(p, multiprocessors(p.q.device_index)));
  if (path.apart) path.engine = Engine::kWgmma;  // the layout counts its chunks
  return path;
}

// The one that the model expects to be the fastest.
Path choose(const Problem& p) {
  Path best;
  if (recurrent_tokens(p) >= 0 || p.batch_invariant || p.N * p.HV == 0) return best;
  const int processors = multiprocessors(p.q.device_index);
  double best_time = whole_microseconds(p, best.engine, processors);
  const auto offer = [&](const Path& path, double time) {
    if (time < best_time) {
      best = path;
      best_time = time;
    }
  };
  const bool splits = may_split(p);
  if (splits) offer({.split = true}, plan_split(p, Engine::kMmaSync, processors).microseconds);
  if (best_engine(p) == Engine::kWgmma) {
    offer({.engine = Engine::kWgmma}, whole_microseconds(p, Engine::kWgmma, processors));
    if (splits) {
      offer({.engine = Engine::kWgmma, .split = true}, plan_split(p, Engine::kWgmma, processors).microseconds);
    }
  }
  if (fused_fits(p)) {
    offer({.fused = true}, fused_microseconds(p, processors));
    offer(apart(p), apart_microseconds(p, processors));
  }
  return best;
}

void forward_on(const Problem& p, Path path, void* workspace_pointer, void* stream_pointer) {
  if (p.N == 0) return;
  const DeviceGuard guard(p.q.device_index);
  auto* const workspace = static_cast<char*>(workspace_pointer);
  auto* const stream = static_cast<cudaStream_t>(stream_pointer);
  if (debugging()) check_device_values(p, stream);
#ifdef FLASHKDA_WITH_SM90
  if (path.fused) {
    launch_fused(p, path, workspace, stream);
    return;
  }
#endif
  if (p.K == 128) {
    launch_two_kernels<128>(p, path, workspace, stream);
  } else {
    launch_two_kernels<64>(p, path, workspace, stream);
  }
}

size_t bytes_on(const Problem& p, Path path) { return static_cast<size_t>(Workspace(p, path).bytes); }

}  // namespace

size_t workspace_size(const Problem& p) { return bytes_on(p, choose(p)); }
void forward(const Problem& p, void* workspace, void* stream) { forward_on(p, choose(p), workspace, stream); }

#define FLASHKDA_RUN_PATH(path)                                                   \
  size_t workspace_size_##path(const Problem& p) { return bytes_on(p, path(p)); } \
  void forward_##path(const Problem& p, void* workspace, void* stream) { forward_on(p, path(p), workspace, stream); }
FLASHKDA_CUDA_PATHS(FLASHKDA_RUN_PATH)
#undef FLASHKDA_RUN_PATH

}  // namespace flashkda::cuda
