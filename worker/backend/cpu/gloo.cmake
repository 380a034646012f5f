telar_library(telar_cpu_gloo SOURCES gloo_channel.cc gloo_communicator.cc gloo_mesh.cc gloo_reduce.cc DEPS telar_backend
                  gloo absl::status absl::statusor absl::strings Threads::Threads)
