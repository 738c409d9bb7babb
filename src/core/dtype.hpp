// Element types: sizes, names, and scalar conversion to and from float (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "flashkda/flashkda.h"

namespace flashkda {

constexpr int64_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case FKDA_FLOAT64:
    case FKDA_INT64: return 8;
    case FKDA_FLOAT32:
    case FKDA_INT32: return 4;
    case FKDA_BFLOAT16:
    case FKDA_FLOAT16: return 2;
    default: return 0;
  }
}

constexpr const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case FKDA_FLOAT64: return "float64";
    case FKDA_FLOAT32: return "float32";
    case FKDA_BFLOAT16: return "bfloat16";
    case FKDA_FLOAT16: return "float16";
    case FKDA_INT32: return "int32";
    case FKDA_INT64: return "int64";
    default: return "unknown dtype";
  }
}

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals are multiples of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal result: adding 0.5 leaves it, rounded, in the low mantissa bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// One element as double / from double; integers too. For the plain paths and the tests, not for inner loops.
inline double load_scalar(const void* data, int32_t dtype, int64_t index) {
  switch (dtype) {
    case FKDA_FLOAT64: return static_cast<const double*>(data)[index];
    case FKDA_FLOAT32: return static_cast<const float*>(data)[index];
    case FKDA_BFLOAT16: return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case FKDA_FLOAT16: return fp16_to_float(static_cast<const uint16_t*>(data)[index]);
    case FKDA_INT32: return static_cast<const int32_t*>(data)[index];
    case FKDA_INT64: return static_cast<double>(static_cast<const int64_t*>(data)[index]);
    default: return 0.0;
  }
}

inline void store_scalar(void* data, int32_t dtype, int64_t index, double value) {
  switch (dtype) {
    case FKDA_FLOAT64: static_cast<double*>(data)[index] = value; break;
    case FKDA_FLOAT32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case FKDA_BFLOAT16: static_cast<uint16_t*>(data)[index] = float_to_bf16(static_cast<float>(value)); break;
    case FKDA_FLOAT16: static_cast<uint16_t*>(data)[index] = float_to_fp16(static_cast<float>(value)); break;
    default: break;
  }
}

inline int64_t load_integer(const void* data, int32_t dtype, int64_t index) {
  return dtype == FKDA_INT32 ? static_cast<const int32_t*>(data)[index] : static_cast<const int64_t*>(data)[index];
}

}  // namespace flashkda
