# Writes OUT, a header with PLEAT_COMMIT: the commit of SOURCE, "-dirty" behind it where tracked files
# differ from it, "" outside of a checkout. OUT is touched only when that changes.
cmake_minimum_required(VERSION 3.25)
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define PLEAT_COMMIT \"@commit@\"\n" @ONLY)
