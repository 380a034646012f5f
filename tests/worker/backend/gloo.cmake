telar_test(gloo_communicator_test SOURCES gloo_communicator_test.cc gloo_gang_test.cc DEPS telar_cpu_gloo telar_cpu_device)
# Ranks as processes, forked before anything starts a thread: a program of its own.
telar_test(gloo_failure_test SOURCES gloo_failure_test.cc DEPS telar_cpu_gloo telar_cpu_device)
if(TARGET telar_cpu)
  telar_test(cpu_module_test SOURCES cpu_module_test.cc DEPS telar_backend)
  add_dependencies(cpu_module_test telar_cpu)
endif()
