telar_test(gloo_communicator_test SOURCES gloo_communicator_test.cc DEPS telar_cpu_gloo)
#Ranks as processes, forked before anything starts a thread : a program of its own.
    telar_test(gloo_failure_test SOURCES gloo_failure_test.cc DEPS telar_cpu_gloo)
