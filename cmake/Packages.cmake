# What is installed, and Debian packages of it: `cpack -G DEB` in the build folder. A component is a package:
# telar-client, telar-coordinator, telar-worker and, where it was built, telar-worker-cuda.
include(GNUInstallDirs)
set(deploy ${CMAKE_SOURCE_DIR}/deploy)
set(modules lib/telar)  # ../lib/telar of telar-rank: where it looks for its backends.

install(TARGETS telar DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT client)
install(TARGETS telar-coordinator DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT coordinator)
install(TARGETS telar-worker telar-rank telar-probe DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
if(TARGET telar_cpu)
  install(TARGETS telar_cpu LIBRARY DESTINATION ${modules} COMPONENT worker)
endif()
set(components client coordinator worker)
if(TARGET telar_cuda)
  # Where deploy/install-cuda.sh puts NVIDIA's wheels, and where NVIDIA's packages put the same libraries.
  set_target_properties(telar_cuda PROPERTIES INSTALL_RPATH "/opt/telar/cuda/lib:/usr/local/cuda/lib64")
  install(TARGETS telar_cuda LIBRARY DESTINATION ${modules} COMPONENT cuda)
  install(PROGRAMS ${deploy}/install-cuda.sh ${deploy}/install-packages.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/telar COMPONENT cuda)
  list(APPEND components cuda)
endif()

foreach(component ${components})
  set(package telar-${component})
  if(component STREQUAL "cuda")
    set(package telar-worker-cuda)
  endif()
  set(documents ${CMAKE_INSTALL_DATADIR}/doc/${package})
  install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${documents} COMPONENT ${component})
  if(NOT component STREQUAL "cuda")
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION ${documents} COMPONENT ${component})
  endif()
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
endforeach()
install(DIRECTORY ${deploy}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/telar-client COMPONENT client)
install(PROGRAMS ${deploy}/slurm/telar.sbatch DESTINATION ${CMAKE_INSTALL_DATADIR}/telar COMPONENT client)
install(PROGRAMS ${deploy}/dev-ca.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/telar COMPONENT coordinator)
install(DIRECTORY ${deploy}/grafana ${deploy}/prometheus DESTINATION ${CMAKE_INSTALL_DATADIR}/telar COMPONENT coordinator
  PATTERN "*.py" EXCLUDE)  # Which writes the dashboards.

# The daemons' units, users and settings, and the scripts that take care of them.
set(scripts ${CMAKE_BINARY_DIR}/packages)
foreach(daemon coordinator worker)
  set(PACKAGE telar-${daemon})
  set(FOLDER ${daemon})
  install(FILES ${deploy}/systemd/${PACKAGE}.service DESTINATION lib/systemd/system COMPONENT ${daemon})
  foreach(kind sysusers tmpfiles)
    install(FILES ${deploy}/systemd/${PACKAGE}.${kind}.conf DESTINATION lib/${kind}.d RENAME ${PACKAGE}.conf
      COMPONENT ${daemon})
  endforeach()
  install(FILES ${deploy}/systemd/${daemon}.env DESTINATION /etc/telar COMPONENT ${daemon})
  file(WRITE ${scripts}/${daemon}/conffiles "/etc/telar/${daemon}.env\n")
  set(control ${scripts}/${daemon}/conffiles)
  foreach(script postinst prerm postrm)
    configure_file(${deploy}/debian/${script}.in ${scripts}/${daemon}/${script} @ONLY
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    list(APPEND control ${scripts}/${daemon}/${script})
  endforeach()
  string(TOUPPER ${daemon} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${control})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS
    "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles, init-system-helpers, procps")
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME telar)
set(CPACK_PACKAGE_VENDOR Telar)
set(CPACK_PACKAGE_CONTACT "The Telar developers <telar@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)  # Some of it belongs below /etc.
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(PACKAGE_RELEASE 1 CACHE STRING "Of the Debian packages of one version")
set(CPACK_DEBIAN_PACKAGE_RELEASE ${PACKAGE_RELEASE})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "Command line of the Telar training service
 Submits training jobs, follows them, and works with data and checkpoints.")
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION "Coordinator of the Telar training service
 Accepts training jobs and hands them to workers; one a cluster.")
set(CPACK_COMPONENT_WORKER_DESCRIPTION "Worker of the Telar training service
 Runs the ranks of training jobs on this node, on its CPUs or, with telar-worker-cuda, on its GPUs.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "GPU backend of the Telar worker
 Needs CUDA 13's cuBLASLt, cuDNN 9 and NCCL 2: NVIDIA's packages, or /usr/share/telar/install-cuda.sh.")
# Its vendor's libraries come from no Debian package; those of Debian come with the worker, of which it is a part.
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "telar-worker (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
include(CPack)
