// Which rank stands where in the three dimensions.
#pragma once

#include <cstdint>

namespace telar::parallel {

// Ranks are numbered ((pp * DP) + dp) * TP + tp: TP neighbours are closest, DP next, PP farthest.
struct Mesh {
  int dp_size = 1;
  int pp_size = 1;
  int tp_size = 1;
  int dp = 0;
  int pp = 0;
  int tp = 0;

  int world_size() const { return dp_size * pp_size * tp_size; }
  int rank() const { return (pp * dp_size + dp) * tp_size + tp; }
  static Mesh of_rank(int rank, int dp_size, int pp_size, int tp_size) {
    return {dp_size, pp_size, tp_size, rank / tp_size % dp_size, rank / (tp_size * dp_size), rank % tp_size};
  }
};

}  // namespace telar::parallel
