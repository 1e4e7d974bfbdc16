#include "train/old_log.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json.h"
#include "common/memory.h"

/* What a line says of itself. */
typedef struct line_facts {
    const char *kind;
    int64_t step;    /* -1: none */
    int64_t resumed; /* of a run; -1: a fresh one */
    double loss;
    bool has_loss;
} line_facts;

static pl_status read_facts(line_facts *out, const pl_json_node *line)
{
    *out = (line_facts){.step = -1, .resumed = -1};
    PL_TRY(pl_json_string(&out->kind, line, "kind"));
    if (pl_json_has(line, "step")) PL_TRY(pl_json_integer(&out->step, line, "step", 0, INT64_MAX));
    if (pl_json_has(line, "resumed"))
        PL_TRY(pl_json_integer(&out->resumed, line, "resumed", 0, INT64_MAX));
    out->has_loss = pl_json_has(line, "loss");
    if (out->has_loss) PL_TRY(pl_json_number(&out->loss, line, "loss", -DBL_MAX, DBL_MAX));
    return PL_OK;
}

static bool stays(const line_facts *f, int64_t step)
{
    if (strcmp(f->kind, "run") == 0) return f->resumed < step;
    if (strcmp(f->kind, "end") == 0 || strcmp(f->kind, "sample") == 0) return false;
    return f->step <= step;
}

static pl_status add_loss(pl_old_log *log, const line_facts *f)
{
    bool held_out = strcmp(f->kind, "evaluation") == 0;
    if (!f->has_loss || (!held_out && strcmp(f->kind, "step") != 0)) return PL_OK;
    PL_TRY(pl_grow(&log->losses, &log->capacity, log->count + 1, sizeof *log->losses,
                   "losses of a log"));
    log->losses[log->count++] = (pl_old_loss){f->step, f->loss, held_out};
    return PL_OK;
}

static pl_status take_line(pl_old_log *log, const char *bytes, size_t length, const char *source,
                           int64_t step)
{
    struct json_t *tree = NULL;
    pl_json_node top;
    line_facts facts;
    PL_TRY(pl_json_parse(&tree, bytes, length, source));
    pl_status status = pl_json_top_object(&top, tree, source);
    if (status == PL_OK) status = read_facts(&facts, &top);
    if (status == PL_OK && stays(&facts, step)) {
        pl_text_add_bytes(&log->kept, bytes, length);
        pl_text_add_string(&log->kept, "\n");
        status = add_loss(log, &facts);
    }
    pl_json_free(tree);
    return status;
}

static pl_status take_lines(pl_old_log *log, const char *bytes, const char *file, int64_t step)
{
    int64_t number = 1;
    for (const char *end = strchr(bytes, '\n'); end;
         bytes = end + 1, end = strchr(bytes, '\n'), ++number) {
        char source[512];
        snprintf(source, sizeof source, "%.480s: line %lld", file, (long long)number);
        PL_TRY(take_line(log, bytes, (size_t)(end - bytes), source, step));
    }
    return pl_text_status(&log->kept);
}

pl_status pl_old_log_read(pl_old_log *out, const char *file, int64_t step)
{
    enum { MOST_BYTES = 1 << 30 };
    char *bytes = NULL;
    size_t length = 0;
    struct stat info;
    pl_old_log log = {0};
    *out = log;
    if (lstat(file, &info) != 0 && errno == ENOENT) return PL_OK;
    PL_TRY(pl_read_file(&bytes, &length, file, MOST_BYTES));
    pl_status status = take_lines(&log, bytes, file, step);
    pl_free(bytes);
    if (status == PL_OK)
        *out = log;
    else
        pl_old_log_free(&log);
    return status;
}

void pl_old_log_free(pl_old_log *log)
{
    pl_text_free(&log->kept);
    pl_free(log->losses);
    *log = (pl_old_log){0};
}
