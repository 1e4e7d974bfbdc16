# Makes the configs of testdata/models into C, so that built-in names work from any folder.
# cmake -DFOLDER=testdata/models -DOUTPUT=models.c -P embed_models.cmake
# Bytes are written as numbers: a string literal of ISO C ends at 4095 characters.
file(GLOB files ${FOLDER}/*.json)
list(FILTER files EXCLUDE REGEX "\\.tensors\\.json$")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "\\.json$" "" name ${name})
  list(APPEND names ${name})
endforeach()
list(SORT names)

set(texts "")
set(name_rows "")
set(model_rows "")
foreach(name IN LISTS names)
  string(MAKE_C_IDENTIFIER "text_${name}" id)
  file(READ ${FOLDER}/${name}.json bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND texts "static const unsigned char ${id}[] = {${bytes}};\n")
  string(APPEND name_rows "    \"${name}\",\n")
  string(APPEND model_rows "    {(const char *)${id}, sizeof ${id}},\n")
endforeach()

list(LENGTH names count)
file(WRITE ${OUTPUT} "/* Made by cmake/embed_models.cmake from testdata/models. */
#include \"common/model_internal.h\"

${texts}
const char *const pl_builtin_model_names[] = {
${name_rows}};

const pl_builtin_model pl_builtin_models[] = {
${model_rows}};

const int pl_builtin_model_count = ${count};
")
