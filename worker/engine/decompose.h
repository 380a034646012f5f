// Collectives that a product waits for, or that wait for one, cut into pieces that run beside the product's pieces.
//
//   all_gather x -> X; Y = product(X)       each rank's rows of X come by themselves, and the product takes them as
//                                           they come, its own rank's first: those need no communication
//   Y = product(X); reduce_scatter Y -> y   the rows of other ranks are computed first and leave while the next are
//                                           computed, the own ones come last; then y is summed up
//
// A pass over a recorded program: it knows which ops can be cut by rows (by_rows()), and nothing of models. Left as
// they are: collectives that another product hides already, because it stands between them and what reads their result
// in the list; products too small to cut; what this cannot be sure of, as when others write the same bytes in between.
//
// Rank r sends block r + s to its owner at step s, or fetches block r + s at step s, so that all links are busy. A
// gather copies, so it changes nothing that products get. A sum is y = (x0 + x1) + x2 + ... in the order of the ranks,
// each add rounded to y's type: with f32, or two ranks, the bits of a reduce_scatter that sums in this order and rounds
// once.
#pragma once

#include "worker/engine/program.h"

namespace telar::engine {

struct Decomposition {
  GroupId group = 0;  // Whose all_gather and reduce_scatter(sum) are cut.
  int rank = 0;       // This rank's place in it.
  int size = 1;
  // The rows that a piece must have to be worth a product of its own. A rank's share of rows is cut in two where that
  // leaves so many and there are few ranks: a transfer that is late to start then has another product to run beside.
  int64_t least_rows = 1;
};

// All ranks of the group must have the same collectives, and ask for the same.
Program decompose(const Program& program, const Decomposition& how);

}  // namespace telar::engine
