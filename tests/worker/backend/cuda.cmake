if(NOT TELAR_CUDA)
  return()
endif()
# The conformance suite on a GPU. Without one every test is skipped.
telar_test(cuda_kernels_test SOURCES ${KERNEL_CONFORMANCE} cuda_rig.cc cuda/big_index_test.cc
  cuda/device_values_test.cc cuda/device_test.cc cuda/launches_test.cc
  DEPS telar_cuda_objects telar_cpu_kernels OpenMP::OpenMP_CXX LABELS gpu TIMEOUT 300 COMPUTES)
set_target_properties(cuda_kernels_test PROPERTIES LINKER_LANGUAGE CXX)
# Once more with every tensor one element off alignment: what the engine never does, but views of odd offsets would. Our
# own kernels only, the libraries' ask for aligned memory.
add_test(NAME cuda_kernels_test.misaligned COMMAND cuda_kernels_test --gtest_filter=-*Linear*:*Attention*:*Determinism*:*BigIndex*)
set_tests_properties(cuda_kernels_test.misaligned PROPERTIES TIMEOUT 300 LABELS gpu
  ENVIRONMENT TELAR_TEST_MISALIGNED=1)
