add_test(NAME e2e.dashboards_selftest COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/prometheus_selftest.py)
set_tests_properties(e2e.dashboards_selftest PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS e2e)
add_test(NAME e2e.dashboards_viewer COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/viewer_test.py)
set_tests_properties(e2e.dashboards_viewer PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS e2e)
