// How a model's layers are dealt out to pipeline stages.
#pragma once

#include <vector>

namespace telar::parallel {

// Consecutive layers; the first stage has the embedding before them, the last one the final norm and the head behind.
struct Stage {
  int first_layer = 0;
  int layers = 0;
  bool embedding = false;
  bool head = false;
  bool operator==(const Stage&) const = default;
};

// What the ends of a model weigh in the balance, in layers. A stage that is late makes all others wait, so weigh work,
// not bytes: a large vocabulary's head is several layers' work, looking up an embedding next to none.
struct EndWeights {
  double embedding = 1;
  double head = 1;
};

// `stages` of them, at most `layers`; each has a layer. The heaviest is as light as can be; of such splits the one
// whose later stages are as heavy as that allows, since with 1F1B earlier ones keep more micro-batches.
std::vector<Stage> split_stages(int layers, int stages, const EndWeights& weights = {});
// So many layers each, as somebody chose.
std::vector<Stage> given_stages(const std::vector<int>& layers);

}  // namespace telar::parallel
