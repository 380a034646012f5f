# The conformance suite knows no backend; the rig chooses it.
set(KERNEL_CONFORMANCE kernel_test.cc memory_ops_test.cc random_test.cc embedding_test.cc linear_test.cc fp8_test.cc fp8_blocks_test.cc norms_test.cc
  activations_test.cc attention_test.cc cross_entropy_test.cc cross_entropy_parts_test.cc
  optimizer_test.cc determinism_test.cc documents_test.cc model_shapes_test.cc)
telar_test(cpu_kernels_test SOURCES ${KERNEL_CONFORMANCE} cpu_rig.cc cpu/simd_test.cc cpu/fp8_types_test.cc
  DEPS telar_cpu_kernels OpenMP::OpenMP_CXX COMPUTES)
# As the kernels are built, for the helpers in headers.
set_source_files_properties(cpu/simd_test.cc cpu/fp8_types_test.cc PROPERTIES COMPILE_OPTIONS "-fno-math-errno;-fno-trapping-math")

# Once more as on processors without bf16 products, and without AVX-512.
foreach(isa AVX512_CORE AVX2)
  add_test(NAME cpu_kernels_test.linear.${isa} COMMAND cpu_kernels_test --gtest_filter=*Linear*:*Determinism*)
  set_tests_properties(cpu_kernels_test.linear.${isa} PROPERTIES TIMEOUT 120
    ENVIRONMENT "DNNL_MAX_CPU_ISA=${isa};TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
endforeach()
