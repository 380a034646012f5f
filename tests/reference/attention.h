#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/reference/values.h"

namespace telar::reference {

struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_dim;
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  // Index of the first element of a head in qkv, and in o.
  int64_t query(int64_t b, int64_t t, int64_t h) const { return (b * sequence + t) * width() + h * head_dim; }
  int64_t key(int64_t b, int64_t t, int64_t h) const { return query(b, t, heads + h / (heads / kv_heads)); }
  int64_t value(int64_t b, int64_t t, int64_t h) const {
    return query(b, t, heads + kv_heads + h / (heads / kv_heads));
  }
  int64_t out(int64_t b, int64_t t, int64_t h) const { return ((b * sequence + t) * heads + h) * head_dim; }
};

inline double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Of each token, the place in its sequence at which its document starts; empty: 0.
using Starts = std::vector<int32_t>;
inline int64_t first_key(const AttentionShape& s, const Starts& starts, int64_t b, int64_t t) {
  return starts.empty() ? 0 : starts[b * s.sequence + t];
}

// Softmax over the keys up to t that one query sees, 0 for others; `lse` gets the log of the sum of exponentials.
inline Values probabilities(const AttentionShape& s, const Values& qkv, const Starts& starts, int64_t b, int64_t h,
                            int64_t t, double& lse) {
  Values p(t + 1, -HUGE_VAL);
  const int64_t first = first_key(s, starts, b, t);
  for (int64_t u = first; u <= t; ++u) {
    p[u] = dot(&qkv[s.query(b, t, h)], &qkv[s.key(b, u, h)], s.head_dim) / std::sqrt(static_cast<double>(s.head_dim));
  }
  const double maximum = *std::max_element(p.begin() + first, p.end());
  double sum = 0;
  for (int64_t u = 0; u <= t; ++u) sum += (p[u] = u < first ? 0 : std::exp(p[u] - maximum));
  for (double& value : p) value /= sum;
  lse = maximum + std::log(sum);
  return p;
}

struct Attention {
  Values o, lse;  // lse: [batch, heads, sequence]
};

// `work(b, g)` for each sequence and group of query heads that share a key head, on all cores: groups share no result.
template <typename Work>
void each_group(const AttentionShape& s, const Work& work) {
  const int64_t groups = s.batch * s.kv_heads;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t at = next++; at < groups; at = next++) work(at / s.kv_heads, at % s.kv_heads);
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min<int64_t>(groups, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

inline void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

inline Attention attention(const AttentionShape& s, const Values& qkv, const Starts& starts = {}) {
  Attention out{Values(s.batch * s.sequence * s.heads * s.head_dim, 0.0), Values(s.batch * s.heads * s.sequence)};
  const int64_t shared = s.heads / s.kv_heads;
  each_group(s, [&](int64_t b, int64_t group) {
    for (int64_t h = group * shared; h < (group + 1) * shared; ++h) {
      for (int64_t t = 0; t < s.sequence; ++t) {
        const Values p = probabilities(s, qkv, starts, b, h, t, out.lse[(b * s.heads + h) * s.sequence + t]);
        for (int64_t u = first_key(s, starts, b, t); u <= t; ++u) {
          add_scaled(&out.o[s.out(b, t, h)], p[u], &qkv[s.value(b, u, h)], s.head_dim);
        }
      }
    }
  });
  return out;
}

inline Values attention_backward(const AttentionShape& s, const Values& qkv, const Values& d_o,
                                 const Starts& starts = {}) {
  Values dqkv(qkv.size(), 0.0);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const int64_t shared = s.heads / s.kv_heads;
  each_group(s, [&](int64_t b, int64_t group) {
    for (int64_t h = group * shared; h < (group + 1) * shared; ++h) {
      for (int64_t t = 0; t < s.sequence; ++t) {
        double lse = 0;
        const Values p = probabilities(s, qkv, starts, b, h, t, lse);
        const int64_t first = first_key(s, starts, b, t);
        Values dp(t + 1);
        double inner = 0;
        for (int64_t u = first; u <= t; ++u) {
          dp[u] = dot(&d_o[s.out(b, t, h)], &qkv[s.value(b, u, h)], s.head_dim);
          inner += p[u] * dp[u];
        }
        for (int64_t u = first; u <= t; ++u) {
          const double ds = p[u] * (dp[u] - inner) * scale;
          add_scaled(&dqkv[s.value(b, u, h)], p[u], &d_o[s.out(b, t, h)], s.head_dim);
          add_scaled(&dqkv[s.query(b, t, h)], ds, &qkv[s.key(b, u, h)], s.head_dim);
          add_scaled(&dqkv[s.key(b, u, h)], ds, &qkv[s.query(b, t, h)], s.head_dim);
        }
      }
    }
  });
  return dqkv;
}

}  // namespace telar::reference
