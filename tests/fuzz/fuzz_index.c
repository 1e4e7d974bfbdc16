/* Indices of sharded sets: the bytes are model.safetensors.index.json beside two shards, "a" and
 * "b" with a tensor each, in a folder that the process keeps. */
#include <string.h>
#include <unistd.h>

#include "ckpt/safetensors_set.h"
#include "common/json.h"
#include "tests/fuzz/fuzz.h"

static char folder[] = "/tmp/pleat-fuzz-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(path_of(name), "wb");
    FUZZ_HOLDS(file);
    FUZZ_HOLDS(fwrite(bytes, 1, count, file) == count);
    FUZZ_HOLDS(fclose(file) == 0);
}

static void write_shard(const char *name, const char *tensor)
{
    char file[256] = {0};
    int length =
        snprintf(file + 8, sizeof file - 8,
                 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", tensor);
    uint64_t header = (uint64_t)length;
    memcpy(file, &header, 8);
    write_file(name, file, 8 + (size_t)length + 2);
}

static void remove_folder(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors",
                                        "model.safetensors.index.json"};
    for (int i = 0; i < 3; ++i) (void)unlink(path_of(names[i]));
    (void)rmdir(folder);
}

static void make_folder(void)
{
    static int made;
    if (made) return;
    made = 1;
    pl_json_check_memory();
    FUZZ_HOLDS(mkdtemp(folder));
    write_shard("a.safetensors", "x");
    write_shard("b.safetensors", "y");
    FUZZ_HOLDS(atexit(remove_folder) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    pl_safetensors_set set;
    make_folder();
    write_file("model.safetensors.index.json", bytes, count);
    pl_error_clear();
    if (pl_safetensors_set_open(&set, folder) != PL_OK) {
        FUZZ_HOLDS(*pl_error_text());
        return 0;
    }
    FUZZ_HOLDS(set.file_count >= 1 && set.file_count <= 2);
    FUZZ_HOLDS(set.place_count == set.file_count);
    FUZZ_HOLDS(pl_safetensors_set_find(&set, "x") || pl_safetensors_set_find(&set, "y"));
    pl_safetensors_set_close(&set);
    return 0;
}
