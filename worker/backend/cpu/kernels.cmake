telar_library(telar_cpu_kernels
  SOURCES kernels.cc parallel.cc memory_ops.cc random.cc embedding.cc linear.cc matmul.cc layer_norm.cc rms_norm.cc
          activations.cc rope.cc attention.cc attention_backward.cc block_product.cc cross_entropy.cc optimizer.cc
  DEPS telar_backend OpenMP::OpenMP_CXX OneDnn::dnnl absl::status absl::strings)
# Sums may be reassociated, else no reduction is vectorised; NaN and infinity keep their meaning. No peeling for
# alignment: the order of a sum must not depend on an address.
target_compile_options(telar_cpu_kernels PRIVATE -fno-math-errno -fno-trapping-math -fno-signed-zeros
  -fassociative-math --param=vect-max-peeling-for-alignment=0)
