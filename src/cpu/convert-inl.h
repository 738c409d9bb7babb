// Rows of the caller's element types to and from fp32. Compiled once per instruction set (see forward.cpp).
#if defined(FLASHKDA_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHKDA_CPU_CONVERT_INL_H_
#undef FLASHKDA_CPU_CONVERT_INL_H_
#else
#define FLASHKDA_CPU_CONVERT_INL_H_
#endif

#include <cstring>

#include "core/dtype.hpp"
#include "cpu/config.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace flashkda::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most kLane lanes: wider machines gain nothing on 32-column panels.
using DF = hn::CappedTag<float, kLane>;
using VF = hn::Vec<DF>;
inline constexpr DF kD{};
inline constexpr int64_t kN = static_cast<int64_t>(hn::MaxLanes(DF()));  // fixed-size targets only, see forward.cpp

HWY_INLINE VF load_bf16(const uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<uint32_t, DF> d32;
  return hn::BitCast(kD, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

// Round to nearest even, NaN stays NaN (Highway 1.0's own demotion truncates).
HWY_INLINE void store_bf16(VF value, uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<uint32_t, DF> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto result = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(result)), d16, p);
}

HWY_INLINE VF load_fp16(const uint16_t* p) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(kD, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

// Where there is no instruction for it, Highway 1.0's demotion to fp16 truncates.
#if HWY_ARCH_ARM_A64 || HWY_TARGET <= HWY_AVX2
inline constexpr bool kRoundsToFP16 = true;
#else
inline constexpr bool kRoundsToFP16 = false;
#endif

HWY_INLINE void store_fp16(VF value, uint16_t* p) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(p));
}

// dst[0..n) = src[0..n) as fp32; never reads past src[n-1].
HWY_INLINE void load_row(const void* src, int32_t dtype, int64_t n, float* HWY_RESTRICT dst) {
  int64_t i = 0;
  if (dtype == FKDA_BFLOAT16) {
    const auto* p = static_cast<const uint16_t*>(src);
    for (; i + kN <= n; i += kN) hn::StoreU(load_bf16(p + i), kD, dst + i);
  } else if (dtype == FKDA_FLOAT16) {
    const auto* p = static_cast<const uint16_t*>(src);
    for (; i + kN <= n; i += kN) hn::StoreU(load_fp16(p + i), kD, dst + i);
  } else {
    const auto* p = static_cast<const float*>(src);
    for (; i + kN <= n; i += kN) hn::StoreU(hn::LoadU(kD, p + i), kD, dst + i);
  }
  for (; i < n; ++i) dst[i] = static_cast<float>(load_scalar(src, dtype, i));
}

// dst[0..n) = src[0..n) rounded to dtype; never writes past dst[n-1].
HWY_INLINE void store_row(const float* HWY_RESTRICT src, int64_t n, void* dst, int32_t dtype) {
  int64_t i = 0;
  if (dtype == FKDA_BFLOAT16) {
    auto* p = static_cast<uint16_t*>(dst);
    for (; i + kN <= n; i += kN) store_bf16(hn::LoadU(kD, src + i), p + i);
  } else if (dtype == FKDA_FLOAT16) {
    auto* p = static_cast<uint16_t*>(dst);
    for (; kRoundsToFP16 && i + kN <= n; i += kN) store_fp16(hn::LoadU(kD, src + i), p + i);
  } else {
    auto* p = static_cast<float*>(dst);
    for (; i + kN <= n; i += kN) hn::StoreU(hn::LoadU(kD, src + i), kD, p + i);
  }
  for (; i < n; ++i) store_scalar(dst, dtype, i, src[i]);
}

}  // namespace flashkda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FLASHKDA_CPU_CONVERT_INL_H_
