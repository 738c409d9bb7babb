// The consumer role: a warpgroup carries 64 value columns of the state through the chunks.
//
// The state is kept transposed as in sm80/recur.cuh, [64 v x 128 k], in the frames R and W of stage.cuh; diag(..) are
// the scales of the chunk's tokens:
//   R^T = W^T diag(F)                          A^T = R^T kd^T diag(read_k)     Q^T = R^T qd^T diag(read_q)
//   U^T = (V^T - A^T) T^T diag(write)          O^T = Q^T + U^T M^T
//   W^T = 2^(32 c) R^T + U^T ki
// U is a product of tf32, because in T keys that repeat cancel; the others are of bf16, in W of two parts of both U and
// ki (of their last bits' product nothing).
#pragma once

#include "cuda/block/convert.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm80/recur.cuh"  // StateFragment
#include "cuda/sm90/item.cuh"
#include "cuda/sm90/output.cuh"
#include "cuda/sm90/params.cuh"
#include "cuda/sm90/stage.cuh"

namespace flashkda::cuda::sm90 {

// slice: the warpgroup's of the block; column: the block's first value column; rank: the block's of its cluster.
template <typename V>
__device__ __forceinline__ void run_consumer(Shared<V>& shared, const FusedParams& p, const Item& item, int slice,
                                             int column, int rank) {
  const int warp = uniform_warp(), thread_lane = threadIdx.x % 32, lane = thread_lane;
  const int v0 = column + slice * 64 + warp * 16;  // the warp's first value column
  const int64_t slot = p.slots.data == nullptr ? item.n : p.slots[item.n];
  const bool stateful = slot >= 0 && slot < p.slot_count;
  sm80::StateFragment<D> S;
  if (stateful && p.initial.data != nullptr) {
    S.load(p.initial, slot * p.initial.slot + item.hv * p.initial.head, D, v0 + lane / 4, lane);
  } else {
    S.clear();
  }
  const float centred = centre(p.lower_bound);
  const auto scale = [&](float x) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S.x[i][e] *= x;
    }
  };
  const float set_back = ptx::exp2_approx(kChunk * centred);  // 2^(32 c)
  float(&state)[64] = reinterpret_cast<float(&)[64]>(S.x);

  uint16_t* const out = static_cast<uint16_t*>(const_cast<void*>(p.out.data)) + item.batch * p.out.batch +
                        (item.begin + lane / 4) * p.out.token + item.hv * p.out.head + v0 + 2 * (lane % 4);
  for (int c = 0; c < item.chunks; ++c) {
    const int s = c % V::kStages, lane = ptx::opaque(thread_lane), t = lane % 4;
    Stage<V::kSlices>& stage = shared.stages[s];
    const Scales& scales = stage.scales;
    const int rows = item.rows(c);
    ptx::barrier_wait(shared.full[s], c / V::kStages & 1);
    if (rows < kChunk) clear_values(stage.v[slice], rows);
    uint32_t values[2][4];  // tokens 0-15, 16-31: V^T in accumulator layout
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = h * 16 + lane / 16 * 8 + lane % 8;
      ptx::ldmatrix_x4_trans(values[h],
                             ptx::shared_address(&stage.v[slice][row][unit_128(row, warp * 2 + lane / 8 % 2)]));
    }
    float acc[16], o[16];
    {
      uint32_t a[D / 16][4];
      const uint64_t kd = ptx::rows_of_128(ptx::shared_address(&stage.x[0][0][0][0]));
      const uint64_t qd = ptx::rows_of_128(ptx::shared_address(&stage.x[0][1][0][0]));
      // Where registers allow, half of S is packed under the other half's products.
      constexpr int kParts = V::kSlices == 1 ? 2 : 1, kSteps = D / 16 / kParts;
      static_for<kParts>([&](auto part) {
        static_for<kSteps>([&](auto step) {
          constexpr int i = part * kSteps + step;
          S.decay(i, *reinterpret_cast<const float4*>(&stage.F[16 * i + 4 * t]));
          S.pack(i, a[i]);
          ptx::hold(a[i]);
        });
        ptx::wgmma_begin();
        static_for<kSteps>([&](auto step) {
          constexpr int i = part * kSteps + step;
          ptx::wgmma_n32_bf16<(i > 0)>(acc, a[i], ptx::advance(kd, i / 4 * sizeof(stage.x[0]) + i % 4 * 32));
        });
        ptx::wgmma_commit();
      });
      static_for<D / 16>([&](auto i) {
        ptx::wgmma_n32_bf16<(i > 0)>(o, a[i], ptx::advance(qd, i / 4 * sizeof(stage.x[0]) + i % 4 * 32));
      });
      ptx::wgmma_commit();
    }
    scale(set_back);
    ptx::hold(state);
    if constexpr (V::kSlices == 1) {
      ptx::wgmma_wait<1>(acc);
    } else {
      ptx::wgmma_wait<0>(acc, o);
    }
    float(&u)[16] = acc;
    {
      uint32_t r[4][4];  // V^T - A^T, a step of 8 tokens each
#pragma unroll
      for (int octet = 0; octet < 4; ++octet) {
        const float2 low = unpack_bf16(values[octet / 2][octet % 2 * 2]),
                     high = unpack_bf16(values[octet / 2][octet % 2 * 2 + 1]);
        const float* const e = acc + 4 * octet;
        const float2 f = *reinterpret_cast<const float2*>(&scales.read_k[8 * octet + 2 * t]);
        r[octet][0] = __float_as_uint(low.x - f.x * e[0]);
        r[octet][1] = __float_as_uint(high.x - f.x * e[2]);
        r[octet][2] = __float_as_uint(low.y - f.y * e[1]);
        r[octet][3] = __float_as_uint(high.y - f.y * e[3]);
      }
      const uint64_t T = ptx::rows_of_128(ptx::shared_address(&stage.T[0][0]));
      ptx::wgmma_begin();
      static_for<4>([&](auto i) { ptx::wgmma_n32_tf32<(i > 0)>(u, r[i], ptx::advance(T, i * 32)); });
      ptx::wgmma_commit();
      if constexpr (V::kSlices == 1) ptx::wgmma_wait<1>(o);
#pragma unroll
      for (int octet = 0; octet < 4; ++octet) {
        const float2 f = *reinterpret_cast<const float2*>(&scales.read_q[8 * octet + 2 * t]);
        o[4 * octet] *= f.x;
        o[4 * octet + 1] *= f.y;
        o[4 * octet + 2] *= f.x;
        o[4 * octet + 3] *= f.y;
      }
      ptx::wgmma_wait<0>(u);
    }
    {
      uint32_t written[2][4], rest[2][4];  // U^T diag(write) in bf16, and what that lacks
#pragma unroll
      for (int octet = 0; octet < 4; ++octet) {
        const float* const e = u + 4 * octet;
        const float2 f = *reinterpret_cast<const float2*>(&scales.write[8 * octet + 2 * t]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = f.x * e[2 * half], y = f.y * e[2 * half + 1];
          uint32_t& pair = written[octet / 2][octet % 2 * 2 + half];
          pair = pack_bf16(x, y);
          const float2 kept = unpack_bf16(pair);
          rest[octet / 2][octet % 2 * 2 + half] = pack_bf16(x - kept.x, y - kept.y);
        }
      }
      const uint64_t M = ptx::rows_of_64(ptx::shared_address(&stage.M[0][0]));
      const uint64_t ki = ptx::columns_of_128(ptx::shared_address(&stage.x[0][2][0][0]), sizeof(stage.x[0]));
      ptx::wgmma_begin(o, state);
      static_for<2>([&](auto i) { ptx::wgmma_n32_bf16<true>(o, written[i], ptx::advance(M, i * 32)); });
      ptx::wgmma_commit();
      static_for<6>([&](auto i) {  // ki, what it lacks, ki
        constexpr int half = i % 2, part = i / 2 % 2;
        ptx::wgmma_n128_bf16_columns<true>(state, i < 4 ? written[half] : rest[half],
                                           ptx::advance(ki, (part * kChunk + half * kHalf) * 128));
      });
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<1>(o);
    store_pairs(out + c * int64_t{kChunk} * p.out.token, p.out.token, rows, o, lane,
                [](float x, float y) { return pack_bf16(x, y); });
    ptx::wgmma_wait<0>(state);
    ptx::barrier_arrive(shared.empty[s]);
    if constexpr (V::kSharers > 1) {
      __syncwarp();
      // A lane for each of the other blocks, if they will wait for it: nothing may be under way to a block that leaves.
      if (lane < V::kSharers && lane != rank && c + V::kStages < item.chunks) {
        ptx::barrier_arrive_there(ptx::address_in_block(ptx::shared_address(&shared.empty[s]), lane));
      }
    }
  }
  const int last = item.chunks - 1;
  // A tail that was sent comes under a barrier of its own; intra has waited for all but the last.
  if constexpr (V::kSharers > 1) {
    if (last >= 0 && last % V::kSharers != rank) {
      ptx::barrier_wait(shared.bits[last % V::kStages], last / V::kOwnPeriod & 1);
    }
  }
  if (stateful && p.final.data != nullptr) {
    if (last >= 0) {  // out of the frame
      const Stage<V::kSlices>& stage = shared.stages[last % V::kStages];
      const int t = lane % 4;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float2 bits = *reinterpret_cast<const float2*>(&stage.tail[8 * i + 2 * t]);
        const float2 f =
            make_float2(ptx::exp2_approx(bits.x - kHalf * centred), ptx::exp2_approx(bits.y - kHalf * centred));
        S.x[i][0] *= f.x;
        S.x[i][1] *= f.y;
        S.x[i][2] *= f.x;
        S.x[i][3] *= f.y;
      }
    }
    S.store(p.final, slot * p.final.slot + item.hv * p.final.head, D, v0 + lane / 4, lane);
  }
}

}  // namespace flashkda::cuda::sm90
