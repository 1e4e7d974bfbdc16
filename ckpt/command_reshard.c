/* pleat-ckpt reshard: write a checkpoint again as another layout's ranks would have. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/command.h"
#include "ckpt/progress.h"
#include "ckpt/store_folder.h"
#include "ckpt/store_reshard.h"
#include "ckpt/store_verify.h"
#include "common/memory.h"
#include "common/run_file.h"

enum { TO, MEMORY, THREADS, DRY_RUN, NO_VERIFY, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [TO] = {"--to", "LAYOUT|FILE", "the new layout, or a run file that has it", false},
    [MEMORY] = {"--memory", "SIZE", "for values on their way; default: 256M", false},
    [THREADS] = {"--threads", "N", "that read and write; default: as many as processors", false},
    [DRY_RUN] = {"--dry-run", NULL, "say what would be read and written, and stop", false},
    [NO_VERIFY] = {"--no-verify", NULL, "do not read the new checkpoint again at the end", false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "reshard",
    .forms = "CHECKPOINT NEW --to LAYOUT|FILE [OPTION...]",
    .about =
        "Writes a checkpoint again as the ranks of another layout would have written it: every\n"
        "value keeps its bits. NEW is the folder step-N itself, N that of the checkpoint, or the\n"
        "folder in which step-N is to be. Values stream through bounded memory.\n\n"
        "A job that was killed is gone on with by the same command; what is in NEW counts only\n"
        "when it is complete. At the end everything is read again and checked.",
    .examples =
        "pleat-ckpt reshard runs/licenses runs/folded --to folded:world=8,ep=8\n"
        "pleat-ckpt reshard runs/licenses runs/folded --to folded:world=8,ep=8 --dry-run --json",
    .options = options,
    .option_count = OPTIONS};

typedef struct reshard_options {
    const char *from, *root, *to;
    int64_t memory, threads;
    bool dry_run, no_verify, json;
} reshard_options;

/* --- arguments --- */

/* "256M", "1GiB", "65536". */
static pl_status take_memory(int64_t *out, const char *value)
{
    static const struct {
        const char *ending;
        int shift;
    } units[] = {{"", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}};
    enum { LEAST = 4 << 20 };
    size_t digits = strspn(value, "0123456789");
    int64_t number = 0;
    for (size_t i = 0; i < digits && number < INT64_MAX / 16; ++i)
        number = 10 * number + (value[i] - '0');
    for (size_t i = 0; digits > 0 && i < sizeof units / sizeof *units; ++i) {
        if (strcmp(value + digits, units[i].ending) != 0) continue;
        if (number > INT64_MAX >> (units[i].shift + 1)) break;
        *out = number << units[i].shift;
        if (*out >= LEAST) return PL_OK;
    }
    return pl_arguments_refuse_word(
        &usage, "--memory: a size of at least 4M is meant, such as 256M, not ", value);
}

static pl_status take(void *context, int option, const char *value)
{
    reshard_options *o = context;
    switch (option) {
    case TO: o->to = value; return PL_OK;
    case MEMORY: return take_memory(&o->memory, value);
    case THREADS:
        return pl_arguments_integer(&o->threads, &usage, options[THREADS].name, value, 1,
                                    PL_RESHARD_THREADS_MOST);
    case DRY_RUN: o->dry_run = true; return PL_OK;
    case NO_VERIFY: o->no_verify = true; return PL_OK;
    case JSON: o->json = true; return PL_OK;
    default: break;
    }
    return pl_command_take_word(o->from ? &o->root : &o->from, &usage, value);
}

static pl_status check_options(reshard_options *o)
{
    if (!o->from || !o->root)
        return pl_arguments_refuse_word(
            &usage, "two folders are meant: a checkpoint, and where it goes", NULL);
    if (!o->to) return pl_arguments_refuse_word(&usage, "--to is missing: the new layout", NULL);
    if (o->threads == 0) {
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        o->threads = processors < 1 ? 1 : processors > 64 ? 64 : processors;
    }
    if (o->memory == 0) o->memory = (int64_t)256 << 20;
    return PL_OK;
}

/* A layout has a colon, and no file is called so. */
static pl_status find_layout(pl_layout *out, const char *to)
{
    pl_run run;
    if (strchr(to, ':') && access(to, F_OK) != 0) return pl_layout_parse(out, to);
    PL_TRY(pl_run_read(&run, to));
    pl_status status = PL_OK;
    if (run.layout)
        status = pl_layout_parse(out, run.layout);
    else
        status = PL_FAIL(PL_BAD_INPUT, "%s: it has no key layout", to);
    pl_run_free(&run);
    return status;
}

/* Replace ROOT by the folder in which step-STEP is to be: GIVEN, or the one above a GIVEN that is
 * called so. */
static pl_status find_root(pl_text *root, const char *given, int64_t step)
{
    char name[48];
    size_t length = strlen(given);
    while (length > 1 && given[length - 1] == '/') --length;
    size_t begin = length;
    while (begin > 0 && given[begin - 1] != '/') --begin;
    int digits = snprintf(name, sizeof name, "step-%" PRId64, step);
    pl_text_clear(root);
    if (length - begin != (size_t)digits || strncmp(given + begin, name, length - begin) != 0)
        pl_text_add_bytes(root, given, length);
    else if (begin == 0)
        pl_text_add_string(root, ".");
    else
        pl_text_add_bytes(root, given, begin > 1 ? begin - 1 : 1);
    return pl_text_status(root);
}

/* --- what is said --- */

typedef struct report {
    const reshard_options *o;
    const char *folder; /* of the new checkpoint */
    const pl_manifest *from;
    const pl_layout *layout;
    pl_reshard_facts facts;
    pl_reshard_result result;
    int64_t peak; /* bytes of memory, as planned */
    double seconds;
    bool verified;
} report;

static void add_plan(pl_text *text, const report *r)
{
    char from[PL_LAYOUT_TEXT], to[PL_LAYOUT_TEXT], bytes[32], number[32];
    const pl_reshard_facts *f = &r->facts;
    pl_text_add(text, "step %" PRId64 " of %s: %s -> %s\n", r->from->progress.step,
                r->from->model.name, pl_layout_format(&r->from->layout, from),
                pl_layout_format(r->layout, to));
    pl_text_add(text, "reads   %s of %s files, ", pl_format_thousands(number, f->reads),
                pl_format_thousands(to, r->from->rank_count));
    pl_text_add(text, "%s", pl_format_bytes(bytes, f->bytes_read));
    pl_text_add(text, "\nwrites  %s boxes", pl_format_thousands(number, f->boxes));
    pl_text_add(text, " in %s files, %s", pl_format_thousands(number, f->ranks),
                pl_format_bytes(bytes, f->bytes));
    pl_text_add(text, ", at most %s in one", pl_format_bytes(bytes, f->most_bytes));
    pl_text_add(text, "\nstays   %s with the rank of the same number",
                pl_format_bytes(bytes, f->staying));
    pl_text_add(text, "\nmemory  %s\n", pl_format_bytes(bytes, r->peak));
}

static void add_result(pl_output *output, const report *r)
{
    char bytes[32], rate[32];
    double seconds = r->seconds > 1e-3 ? r->seconds : 1e-3;
    pl_text_add(&output->text, "%s: %s written in %.1f s, %s/s", r->folder,
                pl_format_bytes(bytes, r->result.bytes), r->seconds,
                pl_format_bytes(rate, (int64_t)((double)r->result.bytes / seconds)));
    if (r->result.reused > 0)
        pl_text_add(&output->text, "; %" PRId64 " of %" PRId64 " ranks were complete from before",
                    r->result.reused, r->result.ranks);
    pl_text_add_string(&output->text, "\n");
    if (r->verified) pl_command_colour(output, PL_COLOUR_GREEN, "verified: no damage\n");
}

static pl_status add_json(pl_text *text, const report *r)
{
    char from[PL_LAYOUT_TEXT], to[PL_LAYOUT_TEXT];
    pl_json_builder json = {.failed = false};
    const pl_reshard_facts *f = &r->facts;
    json_t *top = json_object();
    pl_json_put_string(&json, top, "from", pl_layout_format(&r->from->layout, from));
    pl_json_put_string(&json, top, "to", pl_layout_format(r->layout, to));
    pl_json_put(&json, top, "step", json_integer(r->from->progress.step));
    pl_json_put(&json, top, "reads", json_integer(f->reads));
    pl_json_put(&json, top, "bytes_read", json_integer(f->bytes_read));
    pl_json_put(&json, top, "files", json_integer(f->ranks));
    pl_json_put(&json, top, "boxes", json_integer(f->boxes));
    pl_json_put(&json, top, "bytes", json_integer(f->bytes));
    pl_json_put(&json, top, "most_bytes", json_integer(f->most_bytes));
    pl_json_put(&json, top, "staying", json_integer(f->staying));
    pl_json_put(&json, top, "memory", json_integer(r->peak));
    if (!r->o->dry_run) {
        pl_json_put_string(&json, top, "folder", r->folder);
        pl_json_put(&json, top, "written", json_integer(r->result.bytes));
        pl_json_put(&json, top, "reused", json_integer(r->result.reused));
        pl_json_put(&json, top, "verified", json_boolean(r->verified));
        pl_json_put(&json, top, "seconds", json_real(r->seconds));
    }
    return pl_json_finish(&json, text, top);
}

/* --- the work --- */

static void show(void *context, int64_t done, int64_t bytes)
{
    pl_progress_show(context, done, bytes);
}

static pl_status verify(report *r)
{
    pl_verify_report found = {0};
    const pl_verify_request request = {.folder = r->folder, .threads = (int)r->o->threads};
    PL_TRY(pl_store_verify(&found, &request));
    size_t damages = pl_damages_count(&found.damages);
    pl_verify_report_free(&found);
    r->verified = damages == 0;
    if (r->verified) return PL_OK;
    return PL_FAIL(PL_IO_FAILED,
                   "%s: %zu damages in what was just written: the disk does not keep what it is "
                   "given; 'pleat-ckpt verify' lists them",
                   r->folder, damages);
}

static pl_status write_new(report *r, pl_store_reader *reader, const char *root)
{
    pl_progress progress = pl_progress_begin();
    const pl_reshard_request request = {.from = reader,
                                        .layout = r->layout,
                                        .root = root,
                                        .memory = r->o->memory,
                                        .threads = (int)r->o->threads,
                                        .progress = show,
                                        .context = &progress};
    pl_status status = pl_store_reshard(&r->result, &request);
    pl_progress_end(&progress);
    r->seconds = pl_progress_seconds(&progress);
    if (status == PL_OK && !r->o->no_verify) status = verify(r);
    return status;
}

static pl_status work(pl_output *output, const reshard_options *o, pl_store_reader *reader,
                      const pl_layout *layout)
{
    const pl_manifest *from = pl_store_reader_manifest(reader);
    pl_text root = {0}, folder = {0};
    report r = {.o = o, .from = from, .layout = layout};
    r.peak = pl_reshard_chunk(o->memory, (int)o->threads) * o->threads;
    pl_status status = pl_reshard_check(layout, &from->model);
    if (status == PL_OK)
        status = pl_reshard_plan(&r.facts, from, pl_store_reader_map(reader), layout);
    if (status == PL_OK) status = find_root(&root, o->root, from->progress.step);
    if (status == PL_OK)
        status = pl_checkpoint_path(&folder, pl_text_string(&root), from->progress.step);
    r.folder = pl_text_string(&folder);
    if (status == PL_OK && !o->json) add_plan(&output->text, &r);
    if (status == PL_OK && !o->dry_run) status = write_new(&r, reader, pl_text_string(&root));
    if (status == PL_OK && !o->dry_run && !o->json) add_result(output, &r);
    if (status == PL_OK && o->json) status = add_json(&output->text, &r);
    pl_text_free(&root);
    pl_text_free(&folder);
    return status;
}

static pl_status reshard(pl_output *output, const reshard_options *o)
{
    pl_text path = {0};
    pl_layout layout;
    pl_store_reader *reader = NULL;
    PL_TRY(find_layout(&layout, o->to));
    pl_status status = pl_checkpoint_find(&path, o->from);
    if (status == PL_OK) status = pl_store_reader_open(&reader, pl_text_string(&path));
    if (status == PL_OK) status = work(output, o, reader, &layout);
    pl_store_reader_close(reader);
    pl_text_free(&path);
    return status;
}

pl_status pl_command_reshard(pl_output *output, int count, char **arguments)
{
    reshard_options o = {0};
    bool help = false;
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    PL_TRY(check_options(&o));
    return reshard(output, &o);
}
