telar_library(telar_cpu_kernels
  SOURCES kernels.cc parallel.cc memory_ops.cc random.cc embedding.cc linear.cc fp8.cc matmul.cc layer_norm.cc rms_norm.cc
          activations.cc rope.cc attention.cc attention_backward.cc block_product.cc cross_entropy.cc optimizer.cc
  DEPS telar_backend OpenMP::OpenMP_CXX OneDnn::dnnl absl::status absl::strings)
# Else no square root or conditional is vectorised. Nothing here reads errno or floating-point exceptions.
target_compile_options(telar_cpu_kernels PRIVATE -fno-math-errno -fno-trapping-math)
# A result has the same bits however the tree was built.
set_target_properties(telar_cpu_kernels PROPERTIES UNITY_BUILD OFF)
