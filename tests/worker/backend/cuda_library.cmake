if(TARGET telar_cuda_library)
  telar_test(cuda_library_test
    SOURCES cuda/library_rig.cc cuda/linear_test.cc cuda/fp8_products_test.cc cuda/attention_test.cc cuda/nccl_communicator_test.cc
      cuda/tuning_file_test.cc kernel_test.cc
    DEPS telar_cuda_library LABELS gpu TIMEOUT 300 COMPUTES)
  telar_test(nccl_watchdog_test SOURCES cuda/nccl_watchdog_test.cc DEPS telar_cuda_library)  # Needs no GPU.
  # Else nvcc links, which does not know the linker's options.
  set_target_properties(cuda_library_test nccl_watchdog_test PROPERTIES LINKER_LANGUAGE CXX)
endif()
