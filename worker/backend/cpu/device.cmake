telar_library(telar_cpu_device SOURCES device.cc stream.cc DEPS telar_backend OpenMP::OpenMP_CXX Threads::Threads)
