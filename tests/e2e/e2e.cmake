# e2e_test(MODULE CLASS SECONDS): one class of tests/e2e/MODULE.py against the programs of this build, alone on the machine.
function(e2e_test module class seconds)
  string(REGEX REPLACE "^test_" "" name ${module})
  add_test(NAME e2e.${name}.${class}
    COMMAND ${Python3_EXECUTABLE} -W error ${CMAKE_CURRENT_SOURCE_DIR}/${module}.py -v ${class})
  set_tests_properties(e2e.${name}.${class} PROPERTIES LABELS e2e TIMEOUT ${seconds} RUN_SERIAL TRUE
    ENVIRONMENT "${TELAR_TEST_ENVIRONMENT}")
endfunction()

e2e_test(test_job JobTest 120)
e2e_test(test_job EndTest 120)
e2e_test(test_resume ResumeTest 180)
e2e_test(test_resume LayoutTest 120)
e2e_test(test_resume GiveUpTest 120)
e2e_test(test_checkpoints CheckpointTest 180)
e2e_test(test_daemons CoordinatorTest 240)
e2e_test(test_daemons WorkerTest 300)
e2e_test(test_failover FailoverTest 240)
e2e_test(test_bad_input SpecTest 120)
e2e_test(test_bad_input AddressTest 120)
e2e_test(test_bad_input DataTest 180)
e2e_test(test_bad_input DiskTest 120)
e2e_test(test_dashboards DashboardsTest 180)
