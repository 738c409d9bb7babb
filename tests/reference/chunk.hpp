// A chunk's symbols in buffers of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "flashkda/flashkda.h"

namespace flashkda::test {

struct Chunk {
  Chunk(int64_t K, int64_t V, int32_t chunk_size, int64_t sequence, int64_t head, int64_t chunk)
      : q(zeros(chunk_size, K)),
        k(q),
        v(zeros(chunk_size, V)),
        a(q),
        G(q),
        b(zeros(chunk_size, 1)),
        kd(q),
        qd(q),
        ki(q),
        kr(q),
        L(zeros(chunk_size, chunk_size)),
        Mqk(L),
        INV(L),
        U(v),
        O(v),
        S(zeros(K, V)),
        S_next(S) {
    request.struct_size = sizeof(request);
    request.chunk_size = chunk_size;
    request.sequence = sequence;
    request.head = head;
    request.chunk = chunk;
    request.q = q.data();
    request.k = k.data();
    request.v = v.data();
    request.a = a.data();
    request.G = G.data();
    request.b = b.data();
    request.kd = kd.data();
    request.qd = qd.data();
    request.ki = ki.data();
    request.kr = kr.data();
    request.L = L.data();
    request.Mqk = Mqk.data();
    request.INV = INV.data();
    request.U = U.data();
    request.O = O.data();
    request.S = S.data();
    request.S_next = S_next.data();
  }
  Chunk(const Chunk&) = delete;  // request points into the vectors
  Chunk& operator=(const Chunk&) = delete;

  int64_t rows() const { return request.rows; }

  std::vector<double> q, k, v, a, G, b, kd, qd, ki, kr, L, Mqk, INV, U, O, S, S_next;
  fkda_chunk request = {};

 private:
  static std::vector<double> zeros(int64_t rows, int64_t columns) {
    return std::vector<double>(static_cast<size_t>(rows * columns));
  }
};

}  // namespace flashkda::test
